# The errors of a chainsaw run, each after what the same case printed last: what a
# reader wants at the end of a log in which cases ran side by side. And how things
# stood then, as .chainsaw.yaml has it told.
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
