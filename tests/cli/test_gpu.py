"""--gpu, --gpus, solver_mode and the flags of the GPU engine, where a stand-in drives stand-ins of GPUs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fcaffe.cli import engine as cli_engine
from fcaffe.cli.engine import TrainingGpus
from fcaffe.cli.workers import LaunchFlags
from fcaffe.engines import NumpyEngine
from fcaffe.engines.cuda import driver, libraries
from fcaffe.errors import UsageError
from fcaffe.jobs.hosts import ranks_of_hosts
from fcaffe.jobs.started import host_name
from fcaffe.jobs.world import World
from fcaffe.proto import caffe_pb2 as pb
from fcaffe.threads import VARIABLES
from tests.cli.conftest import SOLVER, Run
from tests.engines.cuda import stand_in_engine
from tests.engines.cuda.emulator import has_compiler
from tests.engines.cuda.fake_driver import FakeDriver
from tests.parallel.conftest import Job, needs_mpi

ROOT = Path(__file__).parents[2]
needs_compiler = pytest.mark.skipif(not has_compiler, reason="the emulator of CUDA needs g++")
pytestmark = pytest.mark.usefixtures("folder")

FIELDS = """\
Device id:                     1
Major revision number:         9
Minor revision number:         0
Name:                          NVIDIA H200
Total global memory:           150754820096
Total shared memory per block: 49152
Total registers per block:     65536
Warp size:                     32
Maximum memory pitch:          2147483647
Maximum threads per block:     1024
Maximum dimension of block:    1024, 1024, 64
Maximum dimension of grid:     2147483647, 65535, 65535
Clock rate:                    1980000
Total constant memory:         65536
Texture alignment:             512
Concurrent copy and execution: Yes
Number of multiprocessors:     132
Kernel execution timeout:      No
"""


class StandIn(NumpyEngine):
    """An engine "on a GPU"."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__()
        self.arguments = arguments
        self.synchronized = 0
        self.name = f"stand-in on GPU {arguments[0]}"

    def synchronize(self) -> None:
        self.synchronized += 1


class Machine:
    """`gpus` are the names of its GPUs; `engines` those that were made."""

    def __init__(self) -> None:
        self.gpus: tuple[str, ...] = ("NVIDIA H200", "NVIDIA H200")
        self.engines: list[StandIn] = []

    def open_driver(self) -> FakeDriver:
        if not self.gpus:
            raise OSError("libcuda.so.1")
        return FakeDriver(self.gpus)

    def engine(self, *arguments: Any) -> StandIn:
        self.engines.append(StandIn(*arguments))
        return self.engines[-1]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setattr(driver, "open_library", made.open_driver)
    monkeypatch.setattr(cli_engine, "gpu_engine", made.engine)
    monkeypatch.setattr(libraries, "load", lambda *_: libraries.find_gpu(_[0]))
    return made


def use_solver_mode(more: str = "") -> None:
    Path("solver.prototxt").write_text(SOLVER.replace("solver_mode: CPU", f"solver_mode: GPU {more}"))


# --- device_query -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("machine")
def test_device_query(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("device_query -gpu 1")
    *lines, ready = result.messages
    assert result.code == 0 and "\n".join(lines) == "Querying GPUs 1\n" + FIELDS.rstrip()
    assert ready == "GPU 1: all that fcaffe needs is there; scripts/check_gpu tries it in a minute"
    with monkeypatch.context() as patched:
        patched.setattr(libraries, "load", lambda *_: libraries.find_gpu(7))
        assert run("device_query -gpu 1").messages[-1].startswith("GPU 1: fcaffe cannot use it: there is no GPU 7 here")
    assert [line for line in run("device_query -gpu all").messages if "Device" in line] == [
        "Device id:                     0",
        "Device id:                     1",
    ]
    assert run("device_query").messages == [
        "Querying GPUs ",
        "This host has 2 GPUs: NVIDIA H200, NVIDIA H200; --gpu all shows their properties",
    ]
    assert run("device_query -gpu 2").fatal.startswith(f"--gpu 2: {host_name()} has 2 GPUs, numbered from 0 to 1")


def test_device_query_without_gpus(run: Run, machine: Machine) -> None:
    machine.gpus = ()
    none = "no GPU (there is no NVIDIA driver, as libcuda.so.1 cannot be loaded: install the GPU's driver, or start "
    for which in ("all", "0"):
        assert run(f"device_query -gpu {which}").fatal.startswith(f"--gpu {which}: {host_name()} has {none}")
    assert run("device_query").messages[1].startswith(f"This host has {none}")


# --- one GPU ----------------------------------------------------------------------------------------------------------


def test_train_on_the_gpu_that_the_flag_names(run: Run, machine: Machine) -> None:
    result = run("train -solver solver.prototxt -gpu 1")
    assert result.code == 0
    assert result.messages[:3] == [
        "Using GPUs 1",
        "GPU 1: NVIDIA H200",
        "stand-in on GPU 1 engine; --math tf32 is up to 7 times as fast",
    ]
    assert "Use CPU." not in result.messages
    assert re.search(r"^device_id: 1$", result.err, re.MULTILINE), "it is in the solver's parameters, as in Caffe"
    assert machine.engines[0].arguments == (1, "fp32", True, True, None)


def test_solver_mode(run: Run, machine: Machine) -> None:
    use_solver_mode("device_id: 1")
    assert run("train -solver solver.prototxt").messages[:2] == ["Using GPUs 1", "GPU 1: NVIDIA H200"]
    assert run("train -solver solver.prototxt -gpu 0").messages[:2] == ["Using GPUs 0", "GPU 0: NVIDIA H200"]
    assert run("train -solver solver.prototxt -engine numpy").messages[0] == "Use CPU.", "a CPU was asked for"
    use_solver_mode()
    assert run("train -solver solver.prototxt").messages[0] == "Using GPUs 0"
    Path("solver.prototxt").write_text(SOLVER.replace("solver_mode: CPU", ""))
    assert run("train -solver solver.prototxt").messages[0] == "Use CPU.", "as in Caffe, the default counts for nothing"
    use_solver_mode("device_id: 2")
    fatal = f"device_id: 2 in the solver, but {host_name()} has 2 GPUs, numbered from 0 to 1; --gpu takes another one"
    assert run("train -solver solver.prototxt").fatal == fatal


def test_solver_mode_without_gpus(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    use_solver_mode()

    def missing(*_: Any) -> None:
        raise UsageError("CuPy is not installed: install it")

    monkeypatch.setattr(libraries, "load", missing)
    result = run("train -solver solver.prototxt")
    assert result.code == 0 and result.err.startswith("W")
    assert result.messages[:2] == [
        "solver_mode: GPU, but CuPy is not installed: install it: training on the CPU",
        "Use CPU.",
    ]
    machine.gpus = ()
    result = run("train -solver solver.prototxt")
    assert result.code == 0 and result.messages[0].startswith("solver_mode: GPU, but there is no NVIDIA driver, as ")
    assert not machine.engines


def test_test_and_time_take_the_first(run: Run, machine: Machine) -> None:
    assert run("train -solver solver.prototxt").code == 0
    words = "-model net.prototxt -iterations 2"
    result = run(f"test {words} -weights small_iter_8.caffemodel -gpu 1,0")
    assert result.code == 0 and result.messages[:4] == [
        "Not using GPU #0 for single-GPU function",
        "Use GPU with device ID 1",
        "GPU device name: NVIDIA H200",
        "stand-in on GPU 1 engine; --math tf32 is up to 7 times as fast",
    ]
    result = run(f"time {words} -gpu all")
    assert result.code == 0 and result.messages[:3] == [
        "Not using GPU #1 for single-GPU function",
        "Use GPU with device ID 0",
        "stand-in on GPU 0 engine; --math tf32 is up to 7 times as fast",
    ]
    layers, passes = 4, 3
    assert machine.engines[-1].synchronized >= 2 * layers * passes, "each layer's time ends when it has run"


@pytest.mark.parametrize(("capability", "math", "is_said"), [((9, 0), "", 1), ((9, 0), "bf16", 0), ((8, 6), "", 0)])
def test_tf32_is_recommended_once_where_it_is_faster(
    run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], math: str, is_said: int
) -> None:
    monkeypatch.setattr(driver, "open_library", lambda: FakeDriver(machine.gpus, capability=capability))
    result = run(f"train -solver solver.prototxt -gpu 0 {math and f'-math {math}'}")
    assert result.err.count("--math tf32 is up to 7 times as fast") == is_said


# --- flags of the engine ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "arguments"),
    [
        ("-math tf32", ("tf32", True, True, None)),
        ("-math bf16 -no-graph", ("bf16", True, False, None)),
        ("-math fp16 -loss-scale dynamic", ("fp16", True, True, None)),
        ("-math fp16 -loss_scale 128", ("fp16", True, True, 128.0)),
        ("-fast-nondeterministic", ("fp32", False, True, None)),
    ],
)
def test_flags_reach_the_engine(run: Run, machine: Machine, flags: str, arguments: tuple[Any, ...]) -> None:
    assert run(f"time -model net.prototxt -iterations 1 -gpu 0 {flags}").code == 0
    assert machine.engines[0].arguments == (0, *arguments)


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("-gpu 0 -engine numpy", "--engine is for CPUs: leave it out on a GPU"),
        ("-gpu 0 -loss-scale 8", "--loss-scale is for --math fp16: fp32 does without, leave it out"),
        ("-gpu 0 -math fp16 -loss-scale 0", "--loss-scale takes a positive number or 'dynamic', not '0'"),
        ("-gpu x", "--gpu x: give numbers of GPUs with commas between them, or all"),
        ("-gpu 5", f"--gpu 5: {host_name()} has 2 GPUs, numbered from 0 to 1"),
        ("-math tf32", "--math tf32 needs a GPU (--gpu 0); on CPUs there are fp32, winograd and bf16"),
        ("-no-graph", "--no-graph is for GPUs: give --gpu 0 as well, or leave it out"),
        ("-gpu 0 -gpus 2", "--gpu 0 and --gpus 2: --gpu gives each GPU a whole batch, --gpus splits it; give one of"),
        ("-gpus 0", "--gpus takes a number, not '0'"),
        ("-gpus 3", f"--gpus 3 needs a GPU for each worker, but {host_name()} has 2 GPUs; ask for"),
        ("-gpus 2 -workers 4", "--gpus 2 means 2 workers, not --workers 4: leave that out"),
        ("-gpu 0 -workers 2", "--gpu 0 means 1 workers, not --workers 2: leave that out"),
        (
            "-gpu 0,1 -reproducible 2",
            "--reproducible 2 does not go with --batch per-worker (with several GPUs of --gpu give --batch global)",
        ),
    ],
)
def test_flags_that_do_not_go_together(run: Run, flags: str, problem: str) -> None:
    assert run(f"train -solver solver.prototxt {flags}").fatal.startswith(problem)


def test_errors_of_the_gpu(run: Run, machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """CuPy's are no fault of fcaffe's, and told in one line."""
    failure = type("CUDARuntimeError", (RuntimeError,), {"__module__": "cupy_backends.cuda.api.runtime"})

    def fail(*_: Any) -> StandIn:
        raise failure("cudaErrorDevicesUnavailable: busy\nor unavailable")

    monkeypatch.setattr(cli_engine, "gpu_engine", fail)
    fatal = run("train -solver solver.prototxt -gpu 0").fatal
    assert fatal.startswith("The GPU or its libraries failed: cudaErrorDevicesUnavailable: busy or unavailable (")


# --- several GPUs -----------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("machine")
def test_what_is_started() -> None:
    def started(gpu: str = "", number: str = "", **flags: Any) -> Any:
        plan = LaunchFlags(**flags).plan(TrainingGpus(gpu, number))
        return plan and (plan.workers, plan.hosts)

    assert started() is started("0") is started(number="1") is None
    assert started("0,1") == started("all") == started(number="2") == started("1,0", workers=2) == (2, ())
    assert started("0,1", hosts="a,b") == (4, (("a", 2), ("b", 2))), "each host's GPUs"
    assert started("0,1", hosts="a:1,b:1") == (2, (("a", 1), ("b", 1)))
    assert started(number="6", hosts="a,b") == (6, (("a", 3), ("b", 3))), "this host need not have GPUs"
    assert started(number="3", hosts="a:2,b:2") == (3, (("a", 2), ("b", 1)))
    assert started(workers=3) == (3, ()) and ranks_of_hosts(3, [("a", 3)]) == (("a", 3),)


@pytest.mark.usefixtures("machine")
def test_the_gpu_of_a_rank(capsys: pytest.CaptureFixture[str]) -> None:
    def taken(local_rank: int, gpu: str = "", number: str = "") -> int | None:
        hosts = (host_name(),) * 2
        world = World(rank=local_rank, size=2, local_rank=local_rank, local_size=2, hosts=hosts)
        world.comm = type("Comm", (), {"allgather": lambda _, own: [own, own]})()
        return TrainingGpus(gpu, number).take(pb.SolverParameter(), world, on_cpu=False)

    assert [taken(rank, gpu="1,0") for rank in (0, 1)] == [1, 0]
    assert capsys.readouterr().err.count("Using GPUs 1, 0") == 2
    assert [taken(rank, number="2") for rank in (0, 1)] == [0, 1]
    assert "Using GPUs 0, 1" in capsys.readouterr().err
    assert [taken(rank, gpu="0,0") for rank in (0, 1)] == [0, 0], "several workers may share one"
    with pytest.raises(UsageError, match=r"rank 1 is number 1 \(from 0\) on .*, and --gpu lists 1 of its GPUs"):
        taken(1, gpu="0")
    with pytest.raises(UsageError, match="--gpus 3, but 2 ranks were started"):
        taken(0, number="3")
    assert taken(0) is None


# --- the engine itself, on its stand-ins ------------------------------------------------------------------------------


@needs_compiler
@pytest.mark.parametrize("flags", ["-no-graph -math tf32", "-math fp16 -loss-scale 64"])
def test_every_command_on_the_engine(run: Run, monkeypatch: pytest.MonkeyPatch, flags: str) -> None:
    monkeypatch.setattr(driver, "open_library", FakeDriver)
    assert run("train -solver solver.prototxt").code == 0
    scores = [run("test -model net.prototxt -iterations 3 -weights small_iter_8.caffemodel").messages[-1]]
    stand_in_engine.install(monkeypatch)
    flags = f"-gpu 0 {flags}"
    scores.append(run(f"test -model net.prototxt -iterations 3 -weights small_iter_8.caffemodel {flags}").messages[-1])
    name, loss = zip(*(score.split(" (")[0].split(" = ") for score in scores), strict=True)
    assert name[0] == name[1] == "loss" and float(loss[1]) == pytest.approx(float(loss[0]), rel=1e-2)
    trained = run(f"train -solver solver.prototxt {flags}")
    assert trained.code == 0 and trained.messages[-1] == "Optimization Done." and "Using GPUs 0" in trained.messages
    assert run(f"time -model net.prototxt -iterations 1 {flags}").code == 0


STAND_INS = ROOT / "tests" / "engines" / "cuda" / "stand_in_gpu"
LAYERS = """
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
  convolution_param { num_output: 4 kernel_size: 3 pad: 1 weight_filler { type: "xavier" } } }
layer { name: "scale" type: "Scale" bottom: "conv" top: "conv" scale_param { bias_term: true } }
layer { name: "relu" type: "ReLU" bottom: "conv" top: "conv" }
layer { name: "drop" type: "Dropout" bottom: "conv" top: "conv" }
"""
NORM = 'layer { name: "bn" type: "BatchNorm" bottom: "conv" top: "conv" }'
HOSTS = "--hostfile hosts --elastic 1:2 --batch global"
BY_TWO = "--workers 2"
WAYS = [  # flags on CPUs, on GPUs, and on both; by how much losses may differ: compression magnifies roundings
    (f"{BY_TWO} --batch per-worker", "--gpu 0,0", "--compress onebit", 5e-2),
    (f"{BY_TWO} --reduce ring", "--gpus 2 --reduce staged:ring", "--bn local", 1e-3),
    ("", "--gpus 2 --compress fp16", "", 1e-3),
    ("--reproducible 3", "--gpus 2 --reproducible 3", "", 1e-3),
    ("", f"--gpu 0 {HOSTS}", "", 1e-3),
]


@pytest.fixture
def train(folder: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str]]:
    """Train with these layers on CPUs or on stand-ins for two GPUs, in this process if one worker does it."""
    net = (folder / "net.prototxt").read_text().replace("data_param", "transform_param { scale: 0.01 } data_param")
    head, ip, tail = net.replace('bottom: "data" top: "ip"', 'bottom: "conv" top: "ip"').partition(
        'layer {\n  name: "ip"'
    )
    (folder / "hosts").write_text("127.0.0.2\n127.0.0.3\n")

    def start(flags: str, layers: str) -> tuple[int, str]:
        (folder / "net.prototxt").write_text(head + layers + ip + tail)
        line, on_gpu = f"train --solver solver.prototxt {flags}", "--gpu" in flags
        if not re.search("workers|gpus|0,0|hostfile", flags):
            with monkeypatch.context() as patched:
                for name in VARIABLES:
                    patched.setenv(name, "1")
                if on_gpu:
                    stand_in_engine.install(patched)
                    patched.setattr(driver, "open_library", FakeDriver)
                result = run(line)
            return result.code, result.err
        path = os.pathsep.join([str(STAND_INS)] * on_gpu + [str(ROOT)])
        variables = {"PYTHONPATH": path, "TEST_FOLDER": str(folder), "OMP_NUM_THREADS": "1"}
        job = Job([sys.executable, "-m", "fcaffe", *line.split()], folder, {**os.environ, **variables})
        return job.wait(), job.text

    return start


@needs_mpi
@needs_compiler
@pytest.mark.parametrize(("on_cpus", "on_gpus", "more", "within"), WAYS)
def test_ways_of_training_give_the_losses_of_cpus(
    train: Callable[..., tuple[int, str]], on_cpus: str, on_gpus: str, more: str, within: float
) -> None:
    layers = LAYERS + NORM * ("--reproducible" not in on_gpus + more)
    losses = []
    for flags in (f"{on_cpus} --engine numpy {more}", f"{on_gpus} {more}"):
        code, text = train(flags, layers)
        assert code == 0 and ("Using GPUs" in text) == ("--gpu" in flags), text
        losses.append([float(loss) for loss in re.findall(r"Iteration \d+.*, loss = (\S+)", text)])
    assert len(losses[0]) == 5 and losses[1] == pytest.approx(losses[0], rel=within)


@needs_mpi
@needs_compiler
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--gpus 2 --parallel hybrid", "--parallel hybrid is for engines on CPUs: leave it out on GPUs"),
        ("--gpu 0 --reproducible 2", "--reproducible 2 cannot give each shard a net of its own, which layers such as"),
    ],
)
def test_ways_that_gpus_have_not_are_refused_in_one_line(
    train: Callable[..., tuple[int, str]], flags: str, problem: str
) -> None:
    code, text = train(flags, LAYERS + NORM)
    (line,) = re.findall(r"^F\d{4} .*", text, re.MULTILINE)
    assert code == 134 and problem in line


# --- machines without GPUs --------------------------------------------------------------------------------------------

POISON = "raise RuntimeError('this package was imported')"


ALL_COMMANDS = """
import sys
from fcaffe.cli import main
for line in sys.argv[1:]:
    print(line, main(line.split()))
"""


def test_cpus_do_without_the_packages(folder: Path) -> None:
    """Packages of these names are there that cannot be imported."""
    for name in ("cupy", "cudnn", "cupyx", "ml_dtypes"):
        (folder / "packages" / name).mkdir(parents=True)
        (folder / "packages" / name / "__init__.py").write_text(POISON)
    use_solver_mode()
    lines = ["train --solver solver.prototxt", "time --model net.prototxt --iterations 1"]
    missing = ["train --solver solver.prototxt --gpu 0", "time --model net.prototxt --gpu 0", "device_query --gpu 0"]
    path = os.pathsep.join([str(folder / "packages"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", "import fcaffe; fcaffe.set_mode_cpu()" + ALL_COMMANDS, *lines, *missing],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines() == [*(f"{line} 0" for line in lines), *(f"{line} 134" for line in missing)]
    fatal = [line for line in done.stderr.splitlines() if line.startswith("F")]
    assert len(fatal) == len(missing) and "imported" not in done.stderr and "Traceback" not in done.stderr
    assert all(f"--gpu 0: {host_name()} has no GPU (" in line for line in fatal)
