"""What runs beside the loop: services, alerts, packing, backups."""
