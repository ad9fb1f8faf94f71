"""Where programs that a language model wrote are run: a fork server with confined children, or WebAssembly."""
