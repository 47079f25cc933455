# Prints the commands of a page: its sh blocks, one after the other.
/^```sh$/ { on = 1; next }
/^```$/ { on = 0 }
on
