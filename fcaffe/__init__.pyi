from typing import Any

from fcaffe import layers as layers
from fcaffe.pycaffe.interface import (
    TEST as TEST,
)
from fcaffe.pycaffe.interface import (
    TRAIN as TRAIN,
)
from fcaffe.pycaffe.interface import (
    Blob as Blob,
)
from fcaffe.pycaffe.interface import (
    Layer as Layer,
)
from fcaffe.pycaffe.interface import (
    Net as Net,
)
from fcaffe.pycaffe.interface import (
    SGDSolver as SGDSolver,
)
from fcaffe.pycaffe.interface import (
    get_solver as get_solver,
)
from fcaffe.pycaffe.interface import (
    layer_type_list as layer_type_list,
)
from fcaffe.pycaffe.interface import (
    set_device as set_device,
)
from fcaffe.pycaffe.interface import (
    set_mode_cpu as set_mode_cpu,
)
from fcaffe.pycaffe.interface import (
    set_mode_gpu as set_mode_gpu,
)
from fcaffe.pycaffe.interface import (
    set_random_seed as set_random_seed,
)
from fcaffe.pycaffe.interface import (
    set_rng as set_rng,
)

__version__: str

def __getattr__(name: str) -> Any: ...
