# Prints the commands of the sh blocks of a page. With -v section=HEADING, only those of that section; with -v
# but=HEADING, only those of the other sections.
/^## / { heading = substr($0, 4) }
/^```sh$/ { on = (section == "" || heading == section) && (but == "" || heading != but); next }
/^```/ { on = 0 }
on
