module github.com/statefulsingleton/statefulsingleton/chainsaw-tests/tools/lint

go 1.26.0

tool github.com/golangci/golangci-lint/v2/cmd/golangci-lint

require github.com/golangci/golangci-lint/v2 v2.15.0
