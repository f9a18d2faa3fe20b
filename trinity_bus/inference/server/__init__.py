"""An inference server of somebody else as an explorer's engine: any that speaks OpenAI's completions with token ids."""
