"""The coding agents of the registries against the gateway."""
