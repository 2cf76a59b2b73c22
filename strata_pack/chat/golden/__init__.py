"""Golden cases: conversations and the exact prompt each must render to."""
