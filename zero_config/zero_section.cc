#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "zero_config/sections.h"

namespace terrace {
namespace {

using NoteKind = ZeroConfigNote::Kind;
using Parameters = ZeroConfigCaller::Parameters;

constexpr char kZero[] = "zero_optimization.";
constexpr char kO[] = "zero_optimization.offload_optimizer";
constexpr char kP[] = "zero_optimization.offload_param";

OffloadDevice DeviceOf(const std::string& word) {
  if (word == "nvme") return OffloadDevice::kNvme;
  return word == "cpu" ? OffloadDevice::kCpu : OffloadDevice::kNone;
}

// The device of an offload section, or of the boolean that it once was.
absl::StatusOr<OffloadDevice> ReadDevice(const char* section,
                                         const char* deprecated,
                                         KeyValues* values) {
  const std::string old = absl::StrCat(kZero, deprecated);
  const std::string path = absl::StrCat(section, ".device");
  const OffloadDevice device = DeviceOf(values->Text(path));
  if (!values->Given(old)) return device;
  values->AddNote(
      NoteKind::kDeprecated, old,
      absl::StrCat("deprecated; read as ", section, ": {\"device\": \"",
                   values->Boolean(old) ? "cpu" : "none", "\"}"));
  const OffloadDevice before =
      values->Boolean(old) ? OffloadDevice::kCpu : OffloadDevice::kNone;
  if (!values->Given(section)) return before;
  if (before == device) return device;
  return values->Bad(
      old, absl::StrCat("contradicts ", path, ": \"", values->Text(path),
                        "\"; give only ", section));
}

// A daemon has memory and disks, and its configuration says which.
absl::Status CheckBesideDaemon(const char* section, OffloadDevice device,
                               const KeyValues& values) {
  const std::string path = absl::StrCat(section, ".nvme_path");
  if (values.Given(path)) {
    return values.Bad(path, absl::StrCat("not beside ", kDaemonKey,
                                         ", whose configuration says where "
                                         "the disks are"));
  }
  if (device != OffloadDevice::kCpu) return absl::OkStatus();
  return values.Bad(
      absl::StrCat(section, ".device"),
      absl::StrCat("beside ", kDaemonKey,
                   " it is \"nvme\": the daemon's memory, as far as the "
                   "memory budget says, and its disks"));
}

// A daemon that is named has something to do.
absl::Status CheckDaemonIsUsed(const ZeroConfigSettings& settings,
                               const KeyValues& values) {
  const bool is_used =
      settings.offload_device == OffloadDevice::kNvme ||
      settings.callers.parameters.device == OffloadDevice::kNvme ||
      settings.callers.activations.device == OffloadDevice::kNvme;
  if (settings.daemon.empty() || is_used) return absl::OkStatus();
  return values.Bad(kDaemonKey, absl::StrCat("nothing is offloaded to it: ", kO,
                                             ".device is not \"nvme\""));
}

absl::Status CheckPath(const char* section, OffloadDevice device,
                       const ZeroConfigSettings& settings, KeyValues* values) {
  const std::string path = absl::StrCat(section, ".nvme_path");
  if (!settings.daemon.empty()) {
    TERRACE_RETURN_IF_ERROR(CheckBesideDaemon(section, device, *values));
  } else if (device == OffloadDevice::kNvme && !values->Given(path)) {
    return values->Bad(
        absl::StrCat(section, ".device"),
        absl::StrCat("needs ", path, ": a directory or a list of directories"));
  }
  const bool has_activations = settings.callers.activations.key == path;
  if (device != OffloadDevice::kNvme && values->Given(path) &&
      !has_activations) {
    values->AddNote(NoteKind::kIgnored, path,
                    "not used: the device is not \"nvme\"");
  }
  const std::string where = absl::StrCat(section, ".device");
  const bool has_device = values->Given(where) || values->IsAuto(where);
  const size_t followed = (has_device ? 1 : 0) + (has_activations ? 1 : 0);
  if (device == OffloadDevice::kNone &&
      values->GivenBelow(section).size() > followed) {
    values->AddNote(NoteKind::kMeaning, where,
                    "\"none\": nothing is offloaded, the section's other keys "
                    "have no effect");
  }
  return absl::OkStatus();
}

absl::Status ReadOffloadParam(const ZeroConfigCaller& caller, KeyValues* values,
                              ZeroConfigSettings* settings) {
  auto device = ReadDevice(kP, "cpu_offload_param", values);
  if (!device.ok()) return device.status();
  const std::string old = absl::StrCat(kZero, "cpu_offload_param");
  const std::string path =
      values->Given(kP) ? absl::StrCat(kP, ".device") : old;
  if (*device != OffloadDevice::kNone && settings->stage != 3) {
    values->AddNote(NoteKind::kIgnored, path,
                    absl::StrCat("accepted; no effect, as in DeepSpeed: "
                                 "parameters are offloaded at stage 3 only, "
                                 "and zero_optimization.stage is ",
                                 settings->stage));
    return absl::OkStatus();
  }
  TERRACE_RETURN_IF_ERROR(CheckPath(kP, *device, *settings, values));
  if (*device == OffloadDevice::kNone) return absl::OkStatus();
  const Parameters parameters = caller.model.parameters;
  if (parameters == Parameters::kOffloaded ||
      (parameters == Parameters::kOffloadedToNvme &&
       *device == OffloadDevice::kNvme)) {
    settings->callers.parameters.device = *device;
    if (*device == OffloadDevice::kNvme) {
      OffloadTarget& place = settings->callers.parameters;
      place.key = absl::StrCat(kP, ".nvme_path");
      place.paths = values->Texts(place.key);
    }
    return absl::OkStatus();
  }
  if (*device == OffloadDevice::kCpu && parameters != Parameters::kElsewhere) {
    values->AddNote(NoteKind::kMeaning, path,
                    "the model is in CPU memory: its parameters are there "
                    "already, and stay");
    return absl::OkStatus();
  }
  return values->NotBuilt(
      path, absl::StrCat("parameters are not offloaded; allowed: \"none\"",
                         *device == OffloadDevice::kCpu
                             ? ", or \"cpu\" for a model in CPU memory"
                             : ", or \"nvme\" for a model in CPU memory that "
                               "the caller offloads"));
}

absl::Status ReadOffloadOptimizer(KeyValues* values,
                                  ZeroConfigSettings* settings) {
  auto device = ReadDevice(kO, "cpu_offload", values);
  if (!device.ok()) return device.status();
  TERRACE_RETURN_IF_ERROR(CheckPath(kO, *device, *settings, values));
  settings->offload_device = *device;
  if (*device == OffloadDevice::kNvme) {
    settings->nvme_paths = values->Texts(absl::StrCat(kO, ".nvme_path"));
  }
  const std::string ratio = absl::StrCat(kO, ".ratio");
  if (values->Number(ratio) < 1) {
    if (settings->stage != 3) {
      return values->Bad(ratio,
                         "Partial offloading only supported for ZeRO Stage 3.");
    }
    values->AddNote(NoteKind::kMeaning, ratio,
                    "all of the state is updated on the host, not a part of "
                    "it");
  }
  settings->update.pipeline =
      values->Boolean(absl::StrCat(kO, ".pipeline_read")) ||
      values->Boolean(absl::StrCat(kO, ".pipeline_write"));
  settings->update.cpu_cores_share =
      values->Number(absl::StrCat(kO, ".cpuadam_cores_perc"));
  return absl::OkStatus();
}

absl::Status CheckStage(const ZeroConfigCaller& caller,
                        const ZeroConfigSettings& settings, KeyValues* values) {
  const std::string path = absl::StrCat(kZero, "stage");
  if (settings.stage < 2) return absl::OkStatus();
  const char* what = settings.stage == 2 ? "gradients" : "parameters";
  if (caller.world_size > 1 && settings.stage == 2 && caller.shares_state) {
    values->AddNote(NoteKind::kMeaning, path,
                    "the ranks share the state as at stage 1; gradients are "
                    "whole on each of them, which changes no number");
    return absl::OkStatus();
  }
  if (caller.world_size > 1) {
    return values->NotBuilt(
        path,
        absl::StrCat(what, " are not split over ", caller.world_size,
                     " ranks; allowed: 0 or 1, or 2 if they share the state"));
  }
  values->AddNote(
      NoteKind::kMeaning, path,
      absl::StrCat("one rank: there is nobody to split ", what, " with"));
  return absl::OkStatus();
}

// What ranks would do to each other's numbers, of which one alone has none.
absl::Status CheckRanks(const ZeroConfigCaller& caller, KeyValues* values) {
  const std::string gradients = absl::StrCat(kZero, "zero_quantized_gradients");
  const std::string partition = absl::StrCat(kZero, "zero_hpz_partition_size");
  const auto check = [&](const std::string& path, bool asked, const char* why) {
    if (!asked) return absl::OkStatus();
    if (caller.world_size > 1) return values->NotBuilt(path, why);
    values->AddNote(NoteKind::kIgnored, path,
                    "accepted; no effect here: one rank has nobody to send to");
    return absl::OkStatus();
  };
  TERRACE_RETURN_IF_ERROR(
      check(gradients, values->Boolean(gradients),
            "the gradients that ranks reduce would be rounded to 4 bits; "
            "allowed: false"));
  return check(partition, values->Integer(partition) > 1,
               "parameters are not split over ranks; allowed: 1");
}

// Where DeepSpeed itself takes no step without it.
absl::Status CheckNorm(const ZeroConfigSettings& settings, KeyValues* values) {
  const std::string path = absl::StrCat(kZero, "compute_grad_norm");
  if (values->Boolean(path)) return absl::OkStatus();
  if (settings.stage != 1 && settings.stage != 2) {
    return values->Bad(path, "false needs zero_optimization.stage 1 or 2");
  }
  if (settings.offload_device != OffloadDevice::kNone) {
    return values->Bad(path, absl::StrCat("false is not taken beside ", kO));
  }
  values->AddNote(NoteKind::kIgnored, path,
                  "accepted; no effect here: a norm that nothing needs is not "
                  "computed");
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadZero(const ZeroConfigCaller& caller, KeyValues* values,
                      ZeroConfigSettings* settings) {
  if (caller.world_size < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "world size ", caller.world_size, " of the caller: at least 1"));
  }
  settings->stage =
      static_cast<int>(values->Integer(absl::StrCat(kZero, "stage")));
  const std::string sub_group = absl::StrCat(kZero, "sub_group_size");
  if (values->Given(sub_group)) {
    settings->update.sub_group_size = values->Integer(sub_group);
  }
  if (values->Given(kDaemonKey)) settings->daemon = values->Text(kDaemonKey);
  TERRACE_RETURN_IF_ERROR(ReadOffloadOptimizer(values, settings));
  TERRACE_RETURN_IF_ERROR(ReadOffloadParam(caller, values, settings));
  TERRACE_RETURN_IF_ERROR(CheckDaemonIsUsed(*settings, *values));
  TERRACE_RETURN_IF_ERROR(CheckStage(caller, *settings, values));
  TERRACE_RETURN_IF_ERROR(CheckRanks(caller, values));
  TERRACE_RETURN_IF_ERROR(CheckNorm(*settings, values));
  if (!values->Given("allgather_size")) return absl::OkStatus();
  if (values->GivenBelow("zero_optimization").size() > 1) {
    return values->Bad("allgather_size",
                       "its place is zero_optimization.allgather_bucket_size");
  }
  values->AddNote(NoteKind::kDeprecated, "allgather_size",
                  "deprecated; no buckets are gathered");
  return absl::OkStatus();
}

absl::Status ReadZenflow(const KeyValues& values,
                         const ZeroConfigSettings& settings) {
  const std::string zenflow = absl::StrCat(kZero, "zenflow");
  if (!values.Given(zenflow)) return absl::OkStatus();
  const auto path = [&](const char* name) {
    return absl::StrCat(zenflow, ".", name);
  };
  if (settings.offload_device == OffloadDevice::kNone) {
    return values.Bad(zenflow, absl::StrCat("needs ", kO));
  }
  int64_t select = 0, update = 0;
  const bool selects =
      absl::SimpleAtoi(values.Text(path("select_interval")), &select);
  const bool updates =
      absl::SimpleAtoi(values.Text(path("update_interval")), &update);
  if (selects && values.Text(path("select_strategy")) == "auto") {
    return values.Bad(path("select_interval"),
                      "select_strategy \"auto\" takes no interval");
  }
  if (selects && updates && select < update) {
    return values.Bad(path("select_interval"),
                      absl::StrCat("at least update_interval, ", update));
  }
  const std::string overlap = absl::StrCat(kZero, "overlap_comm");
  const bool overlaps =
      values.Given(overlap) ? values.Boolean(overlap) : settings.stage == 3;
  if (values.Boolean(path("offload")) && !overlaps) {
    return values.Bad(path("offload"), absl::StrCat("needs ", overlap));
  }
  if (values.Text("gradient_allreduce_op") == "sum") {
    return values.Bad("gradient_allreduce_op", "not with zenflow");
  }
  return values.NotBuilt(zenflow,
                         "it applies most gradients late; allowed: null");
}

}  // namespace terrace
