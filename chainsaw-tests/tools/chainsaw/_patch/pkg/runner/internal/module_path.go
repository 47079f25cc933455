package internal

// ModulePath is asked of every testing.MainStart since Go 1.26; this version of chainsaw is older than that.
func (*TestDeps) ModulePath() string { return "" }
