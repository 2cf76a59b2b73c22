"""Template engines: jinja2, minijinja, transformers, llama.cpp."""
