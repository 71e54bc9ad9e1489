"""What EDL-Dist's machines do beyond the paper; each module's header says what the paper has instead."""
