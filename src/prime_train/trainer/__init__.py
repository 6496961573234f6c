"""The bundled torch trainer. Launched as a process of its own; nothing imports it."""
