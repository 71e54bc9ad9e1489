"""What EDL-Dist's machines do beyond the paper, whose words on it are in each header."""
