"""A page and a small JSON API over trained generators (docs/serve.md)."""
