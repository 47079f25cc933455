{{- /* docs/api.md, by crd-ref-docs. It begins at gvList. */ -}}

{{- define "gvList" -}}
# API reference

Every field of a `StatefulSingleton`, short `stfs`, a `StatefulSetLock`, short `ssl`, and a `StatefulCluster`, short `stc`. `make generate` writes this page from the comments of [the types](../controller/api/v1); `kubectl explain stfs` shows the same. The column *validation* has the error that the API server returns for an invalid value.

Labels, annotations, conditions, events and metrics are in the [reference](reference.md).
{{- range . }}
{{- $types := .SortedTypes }}
{{- $kinds := .SortedKinds }}
{{- /* Each kind, its spec and its status; what these are made of; the values that there are. */}}
{{- range $kind := $kinds }}
{{- range $types }}{{ if hasPrefix $kind .Name }}{{ template "type" . }}{{ end }}{{ end }}
{{- end }}
{{- range $type := $types }}
{{- $ofKind := false }}
{{- range $kinds }}{{ if hasPrefix . $type.Name }}{{ $ofKind = true }}{{ end }}{{ end }}
{{- if and $type.Members (not $ofKind) }}{{ template "type" $type }}{{ end }}
{{- end }}
{{- range $types }}{{ if .EnumValues }}{{ template "type" . }}{{ end }}{{ end }}
{{- end }}
{{ end -}}

{{- define "type" }}

## {{ .Name }}

{{ template "prose" .Doc }}
{{- range index .Markers "kubebuilder:validation:XValidation" }}

The API server rejects invalid objects with: {{ .Message }}
{{- end }}

{{ if .EnumValues }}{{ template "values" . }}{{ else }}{{ template "fields" . }}{{ end }}
{{- end -}}

{{- define "values" -}}
| value | meaning |
| --- | --- |
{{- range .EnumValues }}
| `{{ .Name }}` | {{ template "prose" (regexReplaceAll "^[A-Za-z]+: " .Doc "" | trim) }} |
{{- end }}
{{- end -}}

{{- define "fields" }}
{{- $rules := false }}
{{- range .Members }}{{ if or .Default (index .Markers "kubebuilder:validation:XValidation") }}{{ $rules = true }}{{ end }}{{ end -}}
| field | meaning |{{ if $rules }} default | validation |{{ end }}
| --- | --- |{{ if $rules }} --- | --- |{{ end }}
{{- with .GVK }}
| `apiVersion` | `{{ .Group }}/{{ .Version }}` |
| `kind` | `{{ .Kind }}` |
{{- end }}
{{- range .Members }}
| `{{ .Name }}`<br>{{ template "typeOf" .Type }}{{ if index .Markers "required" }}, required{{ end }} | {{ template "meaning" . }} |{{ if $rules }} {{ with .Default }}`{{ . }}`{{ end }} | {{ template "rules" . }} |{{ end }}
{{- end }}
{{- end -}}

{{- /* To Kubernetes' pages a uid is a string. */ -}}
{{- define "typeOf" }}{{ if eq .Package "k8s.io/apimachinery/pkg/types" }}string{{ else }}{{ markdownRenderType . }}{{ end }}{{ end -}}

{{- define "meaning" }}{{ if eq .Name "metadata" }}as any object's{{ else }}{{ template "prose" (.Doc | default .Type.Doc) }}{{ end }}{{ end -}}

{{- /* What is optional is nothing to tell, and the values of a type stand with it. */ -}}
{{- define "rules" }}
{{- $rules := list }}
{{- range .Validation }}{{ if not (regexMatch "^(Required|Optional|Enum):" .) }}{{ $rules = append $rules (printf "`%s`" .) }}{{ end }}{{ end }}
{{- range index .Markers "kubebuilder:validation:XValidation" }}{{ $rules = append $rules .Message }}{{ end }}
{{- join "<br>" $rules }}
{{- end -}}

{{- /* A comment in one line, as a table needs it. */ -}}
{{- define "prose" }}{{ regexReplaceAll "\n\n+" . "<br><br>" | replace "\n" " " | replace "|" "\\|" }}{{ end -}}
