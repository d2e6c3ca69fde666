"""Snapshots: Caffe's model and state files, and the resume state that fcaffe adds.

    NAME_iter_N.caffemodel[.h5]    the weights: `fcaffe.model_files`
    NAME_iter_N.solverstate[.h5]   SolverState: iter, learned_net (the model's path), history, current_step, and
        resume: ResumeState        ignored by Caffe: all other state of a run
            seed, noise, random    of the run's random streams
            carried                arrays of layers (positions of readers), smoothed losses, the exchange (residuals),
                                   the engine (loss scale)
            made_with              solver type, net, workers...: a run that cannot resume from it is refused
            origin                 which run has written it, and when

So a run that was stopped and resumed gets the weights of one that was not. Files are written completely or not at all.
`files` reads and writes states, `runs` tells states of runs apart, and `carried` collects and restores the resume
state. `saving` does all of this for a Run.
"""
