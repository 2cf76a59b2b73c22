"""Does a model still call tools? Seeded tasks, replies without a grammar, judged by parser and schemas."""
