-- Argo CD's health of a StatefulSingleton, StatefulSetLock or StatefulCluster. docs/gitops.md explains how to configure it.
local status = obj.status or {}
if status.observedGeneration ~= obj.metadata.generation then
  return { status = "Progressing", message = "the controller has not looked at this spec yet" }
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(kind, value)
  return conditions[kind] ~= nil and conditions[kind].status == value
end

local function health(code, kind)
  return { status = code, message = conditions[kind].message }
end

-- The handoff needs a person, or takes longer than spec.maxTransitionTime.
if is("Stalled", "True") then
  return health("Degraded", "Stalled")
end

-- The next pod would be rejected. The state of the holder does not matter.
if is("PolicyInstalled", "False") then
  if conditions.PolicyInstalled.reason == "Installing" then
    return health("Progressing", "PolicyInstalled")
  end
  return health("Degraded", "PolicyInstalled")
end

if is("Reconciling", "True") then
  return health("Progressing", "Reconciling")
end

if is("Ready", "True") then
  if conditions.Ready.reason == "AwaitingHandover" or conditions.Ready.reason == "Paused" then
    return health("Suspended", "Ready")
  end
  return health("Healthy", "Ready")
end

-- A StatefulCluster whose pods start. Argo CD says the same of a StatefulSet.
if is("Ready", "False") and conditions.Ready.reason == "PodsUnavailable" then
  return health("Progressing", "Ready")
end

-- The holder was Ready before, and is not Ready now.
if is("Ready", "False") then
  return health("Degraded", "Ready")
end

return { status = "Progressing", message = "the controller has not reported yet" }
