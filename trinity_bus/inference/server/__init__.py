"""An inference server of somebody else as an explorer's engine: any that speaks OpenAI's completions with token ids.

``answers``   its answers, as token ids and log-probabilities. Pure
``kinds``     what servers differ in: options, and the routes by which one takes weights from a folder
``client``    one server over HTTP, with limits
``start``     whether it can be an engine at all
``gate``      requests and changes of weights take turns
``engine``    all of it behind the interface of an explorer's engine
"""
