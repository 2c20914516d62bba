#include "absl/strings/str_cat.h"
#include "zero_config/sections.h"

namespace terrace {

// DeepSpeed moves what its own checkpoints save to the host. A model in CPU
// memory has it there already, so here it goes to the tier below.
absl::Status ReadActivations(const ZeroConfigCaller& caller, KeyValues* values,
                             ZeroConfigSettings* settings) {
  const char* key = "activation_checkpointing.cpu_checkpointing";
  if (!caller.model.offloads_activations) {
    if (values->Given(key)) {
      values->AddNote(ZeroConfigNote::Kind::kIgnored, key,
                      "accepted; no effect here: what is recomputed is the "
                      "training program's choice");
    }
    return absl::OkStatus();
  }
  if (!values->Boolean(key)) return absl::OkStatus();
  if (caller.world_size > 1) {
    return values->NotBuilt(key,
                            "activations are offloaded on one rank; allowed: "
                            "false");
  }
  if (values->Given(kDaemonKey)) {
    settings->callers.activations = {OffloadDevice::kNvme, {}, kDaemonKey};
    return absl::OkStatus();
  }
  const char* paths[] = {"zero_optimization.offload_param.nvme_path",
                         "zero_optimization.offload_optimizer.nvme_path"};
  for (const char* path : paths) {
    if (!values->Given(path)) continue;
    settings->callers.activations = {OffloadDevice::kNvme, values->Texts(path),
                                     path};
    return absl::OkStatus();
  }
  values->AddNote(
      ZeroConfigNote::Kind::kMeaning, key,
      absl::StrCat("activations are in CPU memory already, and stay: there is "
                   "neither ",
                   paths[0], " nor ", paths[1], " for them to go to"));
  return absl::OkStatus();
}

}  // namespace terrace
