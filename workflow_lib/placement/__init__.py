"""Which GPU for which stage: what goes with a GPU, and whether to place work by it.

``readings`` takes one reading a GPU and run from a sweep's tables; ``effects`` tells apart what
goes with the GPU, with the stage and with time; ``slots`` lists GPUs by it. ``stages`` predicts a
step from GPUs' speeds, ``search`` looks for the surest gain, and ``advice`` decides whether it is
sure enough. The report of the sweep that tries it sets the prediction beside runs.

``levels`` finds runs of a cell at several limits of power or clocks and how the cell answers,
``power_at_limit`` what each GPU then does, and ``limits`` looks for limits that pay.
"""
