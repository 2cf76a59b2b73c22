"""Downloads from the Hugging Face Hub: selects files, fetches them, verifies their content."""
