"""EC-DNN and what it is compared with: local models on local data that become one."""
