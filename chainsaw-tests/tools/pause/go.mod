module github.com/statefulsingleton/statefulsingleton/chainsaw-tests/tools/pause

go 1.26.0
