package internal

// ModulePath is a method that testing.MainStart needs since Go 1.26. This version of chainsaw does not have it.
func (*TestDeps) ModulePath() string { return "" }
