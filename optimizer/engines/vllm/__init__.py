"""Real vLLM servers: started, loaded, watched, ended."""
