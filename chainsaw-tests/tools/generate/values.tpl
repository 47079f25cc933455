{{- /* helm-tool renders the chart's values with this template: one table for each section. */ -}}
{{- define "default" }}
{{- if contains "\n" . }}<pre>{{ replace "\n" "<br>" . }}</pre>{{ else }}`{{ . }}`{{ end }}
{{- end }}
{{- range .Sections }}
{{- if .Properties }}

### {{ .Name }}

| value | purpose | default |
| --- | --- | --- |
{{- range .Properties }}
| `{{ .Path }}` | {{ range .Description.Segments }}{{ if ne .Type "tag" }}{{ .String | replace "\n" " " | replace "|" "\\|" | trim }} {{ end }}{{ end }}| {{ template "default" .Default }} |
{{- end }}
{{- end }}
{{- end }}
