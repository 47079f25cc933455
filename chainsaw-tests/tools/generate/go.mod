module github.com/statefulsingleton/statefulsingleton/chainsaw-tests/tools/generate

go 1.26.0

tool (
	github.com/cert-manager/helm-tool
	github.com/losisin/helm-values-schema-json/v2
)

require (
	github.com/cert-manager/helm-tool v0.6.0 // indirect
	github.com/losisin/helm-values-schema-json/v2 v2.5.0 // indirect
)
