# Prints the errors of a chainsaw run, each after the last output of the same case. Cases run in parallel, and the log
# mixes them. It also prints the state of the cluster that .chainsaw.yaml collects.
/^=== (NAME|CONT)/ { next }
/^    sink\.go:/ {
	split($0, column, / *\| */)
	test = column[3]; status = column[6]
	if (status == "ERROR") printf "%s%s\n", last[test], $0
	else last[test] = $0 "\n"
	next
}
/^ +in [a-z0-9-]+: / { print; next }
/^        / && status == "ERROR" { print; next }
/^        / { last[test] = last[test] $0 "\n"; next }
{ status = "" }
