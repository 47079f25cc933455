{{/* fullname is the prefix of the names of all objects of the release. */}}
{{- define "statefulsingleton.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 52 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 34 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/*
serviceAccountName is the ServiceAccount of the controller. The guards name it, so the three names come from one value and
always differ: no program gets what the guards allow another.
*/}}
{{- define "statefulsingleton.serviceAccountName" -}}
{{- if eq .Values.serviceAccount.name "default" -}}
{{- fail "serviceAccount.name is default: every pod of the namespace that names no ServiceAccount would have the permissions of the controller, and the guards would take it for the controller. Set a name that no other pod uses" -}}
{{- end -}}
{{- .Values.serviceAccount.name | default (include "statefulsingleton.fullname" .) -}}
{{- end -}}

{{/* clusterManagerServiceAccountName is the ServiceAccount of the manager of StatefulClusters. */}}
{{- define "statefulsingleton.clusterManagerServiceAccountName" -}}
{{- include "statefulsingleton.serviceAccountName" . }}-clusters
{{- end -}}

{{/* uninstallServiceAccountName is the ServiceAccount of the pre-delete hook. */}}
{{- define "statefulsingleton.uninstallServiceAccountName" -}}
{{- include "statefulsingleton.serviceAccountName" . }}-uninstall
{{- end -}}

{{/* labels are the labels of all objects. commonLabels cannot replace the labels of the chart or app.kubernetes.io/component. */}}
{{- define "statefulsingleton.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
  "app.kubernetes.io/name" .Chart.Name
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
-}}
{{- omit .Values.commonLabels "app.kubernetes.io/component" | merge $own | toYaml -}}
{{- end -}}

{{/* selectorLabels select the controller's pods, and not the pod of the hook. */}}
{{- define "statefulsingleton.selectorLabels" -}}
{{- include "statefulsingleton.selectorLabelsOf" (dict "root" . "component" "controller") -}}
{{- end -}}

{{/* selectorLabelsOf select the pods of a component. */}}
{{- define "statefulsingleton.selectorLabelsOf" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end -}}

{{/* clusterManagerName is the name of the manager of StatefulClusters: its Deployment and its permissions. */}}
{{- define "statefulsingleton.clusterManagerName" -}}
{{- include "statefulsingleton.fullname" . }}-clusters
{{- end -}}

{{/*
image is the reference of an image: (dict "root" $ "image" .Values.image.x). As for container runtimes, the first part of a
repository is a registry if it has a dot or a port, or is localhost.
*/}}
{{- define "statefulsingleton.image" -}}
{{- $registry := .root.Values.global.imageRegistry -}}
{{- if $registry -}}
{{- $registry }}/{{ regexReplaceAll "^([^/]*[.:][^/]*|localhost)/" .image.repository "" -}}
{{- else -}}
{{- .image.repository -}}
{{- end -}}
{{- if .image.tag }}:{{ .image.tag }}{{ else if not .image.digest }}:{{ .root.Chart.AppVersion }}{{ end -}}
{{- with .image.digest }}@{{ . }}{{ end -}}
{{- end -}}

{{- define "statefulsingleton.managerImage" -}}
{{- include "statefulsingleton.image" (dict "root" $ "image" .Values.image.manager) -}}
{{- end -}}

{{- define "statefulsingleton.gateImage" -}}
{{- include "statefulsingleton.image" (dict "root" $ "image" .Values.image.gate) -}}
{{- end -}}

{{/* amounts formats resources for a flag: cpu=10m,memory=32Mi. */}}
{{- define "statefulsingleton.amounts" -}}
{{- $amounts := list -}}
{{- range $resource, $amount := . -}}
{{- $amounts = printf "%s=%v" $resource $amount | append $amounts -}}
{{- end -}}
{{- join "," $amounts -}}
{{- end -}}

{{/* placement is the nodes on which the controller and the hook can run. */}}
{{- define "statefulsingleton.placement" -}}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
