"""How parallel students become one model. One student needs no aggregation."""
