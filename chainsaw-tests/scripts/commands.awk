# The commands of a page, as they are written: what stands in its blocks of sh. With -v section=HEADING only those
# of that section, with -v but=HEADING only those of the others.
/^## / { heading = substr($0, 4) }
/^```sh$/ { on = (section == "" || heading == section) && (but == "" || heading != but); next }
/^```/ { on = 0 }
on
