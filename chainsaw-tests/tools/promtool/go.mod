module github.com/statefulsingleton/statefulsingleton/chainsaw-tests/tools/promtool

go 1.26.0

tool github.com/prometheus/prometheus/cmd/promtool

require github.com/prometheus/prometheus v0.313.2 // indirect
