"""The pack: a folder an inference engine can serve as it is. Its layout, manifest, build, verification and template."""
