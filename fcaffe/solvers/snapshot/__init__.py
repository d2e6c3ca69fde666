"""Snapshots: Caffe's model and state files, written whole or not at all, and what fcaffe adds to a state.

    NAME_iter_N.caffemodel[.h5]    the weights: `fcaffe.net.model_files`
    NAME_iter_N.solverstate[.h5]   SolverState: iter, learned_net (the model's path), history, current_step, and
        resume: ResumeState        which Caffe passes over: all else that a run carries from one iteration to the next
            seed, noise, random    of the run's random streams
            reader                 where each layer that reads records stands
            carried                arrays of layers, smoothed losses, the exchange (residuals), the engine (loss scale)
            made_with              solver type, net, workers...: a run that cannot go on from it is refused

So a run that was stopped and resumed has the weights of one that was not. `state_files` reads and writes the files,
`carried` gathers and hands out what is carried, `made_with` compares, `write` and `read` do it all for a Run.
"""
