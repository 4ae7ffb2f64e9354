"""What people and machines read afterwards. Reports read recorded results and never compute one."""
