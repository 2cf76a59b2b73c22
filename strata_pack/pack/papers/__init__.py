"""The papers of a pack, derived from its manifest: where it comes from (SLSA) and what is in it (CycloneDX)."""
