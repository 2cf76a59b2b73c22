"""Derives a pack's attestations from its manifest: provenance (SLSA) and bill of materials (CycloneDX)."""
