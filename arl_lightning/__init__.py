"""Multi-turn reinforcement learning for language-model agents, as exchangeable Lightning parts."""
