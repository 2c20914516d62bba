#include "machine/profile/profile.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"
#include "machine/probe_file.h"
#include "tiers/system_error.h"

namespace terrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

absl::Status Wrong(const std::string& key, const char* what) {
  return absl::InvalidArgumentError(absl::StrCat(key, " ", what));
}

absl::StatusOr<const Json*> Find(const Json& object, const std::string& key) {
  const auto found = object.find(key);
  if (found == object.end()) return Wrong(key, "is missing");
  return &*found;
}

absl::Status Get(const Json& object, const std::string& key,
                 std::string* text) {
  TERRACE_ASSIGN_OR_RETURN(const Json* const value, Find(object, key));
  if (!value->is_string()) return Wrong(key, "is no text");
  *text = value->get<std::string>();
  return absl::OkStatus();
}

absl::Status Get(const Json& object, const std::string& key, bool* truth) {
  TERRACE_ASSIGN_OR_RETURN(const Json* const value, Find(object, key));
  if (!value->is_boolean()) return Wrong(key, "is neither true nor false");
  *truth = value->get<bool>();
  return absl::OkStatus();
}

absl::Status Get(const Json& object, const std::string& key, int64_t* number) {
  TERRACE_ASSIGN_OR_RETURN(const Json* const value, Find(object, key));
  if (!value->is_number_integer() || value->get<int64_t>() < 0) {
    return Wrong(key, "is no whole number of at least 0");
  }
  *number = value->get<int64_t>();
  return absl::OkStatus();
}

absl::Status Get(const Json& object, const std::string& key, double* number) {
  TERRACE_ASSIGN_OR_RETURN(const Json* const value, Find(object, key));
  if (!value->is_number() || !std::isfinite(value->get<double>()) ||
      value->get<double>() < 0) {
    return Wrong(key, "is no number of at least 0");
  }
  *number = value->get<double>();
  return absl::OkStatus();
}

// Calls `take` with each object of a list.
template <typename Take>
absl::Status ForEach(const Json& object, const std::string& key, Take take) {
  TERRACE_ASSIGN_OR_RETURN(const Json* const list, Find(object, key));
  if (!list->is_array()) return Wrong(key, "is no list");
  for (const Json& entry : *list) {
    if (!entry.is_object()) return Wrong(key, "holds what is no object");
    TERRACE_RETURN_IF_ERROR(take(entry));
  }
  return absl::OkStatus();
}

absl::Status ParseRate(const Json& json, RateProfile* rate) {
  TERRACE_RETURN_IF_ERROR(Get(json, "direction", &rate->direction));
  if (rate->direction != "read" && rate->direction != "write" &&
      rate->direction != "mixed") {
    return Wrong("direction", "is none of read, write and mixed");
  }
  TERRACE_RETURN_IF_ERROR(Get(json, "piece_bytes", &rate->piece_bytes));
  TERRACE_RETURN_IF_ERROR(Get(json, "window_bytes", &rate->window_bytes));
  TERRACE_RETURN_IF_ERROR(
      Get(json, "bytes_per_second", &rate->bytes_per_second));
  TERRACE_RETURN_IF_ERROR(Get(json, "latency_p50_us", &rate->latency_p50_us));
  return Get(json, "latency_p99_us", &rate->latency_p99_us);
}

absl::Status ParsePath(const Json& json, PathProfile* path) {
  TERRACE_RETURN_IF_ERROR(Get(json, "path", &path->path));
  TERRACE_RETURN_IF_ERROR(Get(json, "engine", &path->engine));
  TERRACE_RETURN_IF_ERROR(Get(json, "direct_io", &path->direct_io));
  TERRACE_ASSIGN_OR_RETURN(const Json* const drives, Find(json, "drives"));
  if (!drives->is_array()) return Wrong("drives", "is no list");
  for (const Json& drive : *drives) {
    if (!drive.is_string()) return Wrong("drives", "holds what is no text");
    path->drives.push_back(drive.get<std::string>());
  }
  return ForEach(json, "rates", [&](const Json& entry) {
    return ParseRate(entry, &path->rates.emplace_back());
  });
}

absl::Status ParseTierRates(const Json& json, TierProfile* tier) {
  TERRACE_RETURN_IF_ERROR(Get(json, "tier", &tier->tier));
  TERRACE_RETURN_IF_ERROR(
      Get(json, "read_bytes_per_second", &tier->read_bytes_per_second));
  return Get(json, "write_bytes_per_second", &tier->write_bytes_per_second);
}

absl::Status Parse(const Json& json, MachineProfile* profile) {
  if (!json.is_object()) return Wrong("it", "is no JSON object");
  int64_t format = 0;
  TERRACE_RETURN_IF_ERROR(Get(json, "format", &format));
  if (format != kFormat) return Wrong("format", "is not 1");
  TERRACE_RETURN_IF_ERROR(Get(json, "machine_id", &profile->machine_id));
  TERRACE_RETURN_IF_ERROR(Get(json, "kernel", &profile->kernel));
  TERRACE_RETURN_IF_ERROR(Get(json, "processor", &profile->processor));
  TERRACE_RETURN_IF_ERROR(Get(json, "measured_at", &profile->measured_at));
  int64_t threads = 0;
  TERRACE_RETURN_IF_ERROR(Get(json, "threads", &threads));
  profile->threads = static_cast<int>(std::min<int64_t>(threads, INT32_MAX));
  TERRACE_RETURN_IF_ERROR(
      Get(json, "copy_bytes_per_second", &profile->copy_bytes_per_second));
  TERRACE_RETURN_IF_ERROR(
      Get(json, "instruction_set", &profile->instruction_set));
  TERRACE_RETURN_IF_ERROR(Get(json, "adam_elements_per_second",
                              &profile->adam_elements_per_second));
  TERRACE_RETURN_IF_ERROR(ForEach(json, "paths", [&](const Json& entry) {
    return ParsePath(entry, &profile->paths.emplace_back());
  }));
  if (!json.contains("tiers")) return absl::OkStatus();  // an older profile
  return ForEach(json, "tiers", [&](const Json& entry) {
    return ParseTierRates(entry, &profile->tiers.emplace_back());
  });
}

Json ToObject(const PathProfile& path) {
  Json rates = Json::array();
  for (const RateProfile& rate : path.rates) {
    rates.push_back({{"direction", rate.direction},
                     {"piece_bytes", rate.piece_bytes},
                     {"window_bytes", rate.window_bytes},
                     {"bytes_per_second", rate.bytes_per_second},
                     {"latency_p50_us", rate.latency_p50_us},
                     {"latency_p99_us", rate.latency_p99_us}});
  }
  return {{"path", path.path},
          {"drives", path.drives},
          {"engine", path.engine},
          {"direct_io", path.direct_io},
          {"rates", rates}};
}

absl::Status WriteAll(const std::string& file, const std::string& text) {
  const auto refused = [&](const char* what) {
    return ErrnoError(absl::StrCat("file '", file, "'"), what, errno, file);
  };
  const Descriptor opened(
      open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (opened.get() < 0) return refused("cannot be made");
  for (size_t done = 0; done < text.size();) {
    const ssize_t n =
        write(opened.get(), text.data() + done, text.size() - done);
    if (n < 0 && errno != EINTR) return refused("cannot be written");
    if (n > 0) done += static_cast<size_t>(n);
  }
  if (fsync(opened.get()) != 0) return refused("cannot be flushed");
  return absl::OkStatus();
}

void AddStaleTier(const MachineProfile& profile, const TierReport& report,
                  std::vector<std::string>* reasons) {
  const TierKind kind = report.tier.kind;
  if (!report.named || (kind != TierKind::kFar && kind != TierKind::kPmem)) {
    return;
  }
  const std::string name = TierName(report.tier);
  const bool is_measured =
      std::any_of(profile.tiers.begin(), profile.tiers.end(),
                  [&](const TierProfile& tier) { return tier.tier == name; });
  if (!is_measured) {
    reasons->push_back(absl::StrCat("tier '", name, "' was not measured"));
  } else if (!report.status.ok()) {
    reasons->push_back(absl::StrCat(
        "tier '", name,
        "' cannot be had: ", absl::string_view(report.status.message())));
  }
}

}  // namespace

std::string IdentityOf(const DriveReport& drive) {
  std::vector<std::string> words = {drive.name};
  for (const std::string& word : {drive.model, drive.serial}) {
    if (!word.empty()) words.push_back(word);
  }
  return absl::StrJoin(words, " ");
}

std::string ToJson(const MachineProfile& profile) {
  Json paths = Json::array();
  for (const PathProfile& path : profile.paths) {
    paths.push_back(ToObject(path));
  }
  Json tiers = Json::array();
  for (const TierProfile& tier : profile.tiers) {
    tiers.push_back({{"tier", tier.tier},
                     {"read_bytes_per_second", tier.read_bytes_per_second},
                     {"write_bytes_per_second", tier.write_bytes_per_second}});
  }
  const Json json = {
      {"format", kFormat},
      {"machine_id", profile.machine_id},
      {"kernel", profile.kernel},
      {"processor", profile.processor},
      {"measured_at", profile.measured_at},
      {"threads", profile.threads},
      {"copy_bytes_per_second", profile.copy_bytes_per_second},
      {"instruction_set", profile.instruction_set},
      {"adam_elements_per_second", profile.adam_elements_per_second},
      {"paths", paths},
      {"tiers", tiers}};
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

absl::Status WriteProfile(const MachineProfile& profile,
                          const std::string& file) {
  const std::filesystem::path folder =
      std::filesystem::path(file).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) {
    return ErrnoError(absl::StrCat("folder '", folder.string(), "'"),
                      "cannot be made", error.value(), folder.string());
  }
  const std::string unfinished = absl::StrCat(file, ".", getpid(), ".new");
  absl::Status status = WriteAll(unfinished, ToJson(profile));
  if (status.ok() && rename(unfinished.c_str(), file.c_str()) != 0) {
    status = ErrnoError(absl::StrCat("file '", file, "'"), "cannot be replaced",
                        errno, file);
  }
  if (!status.ok()) unlink(unfinished.c_str());
  return status;
}

absl::StatusOr<MachineProfile> ReadProfile(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  if (!in) {
    return ErrnoError(absl::StrCat("file '", file, "'"), "cannot be read",
                      errno, file);
  }
  std::stringstream text;
  text << in.rdbuf();
  MachineProfile profile;
  const absl::Status parsed = Parse(
      Json::parse(text.str(), nullptr, /*allow_exceptions=*/false), &profile);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "file '", file, "' is no machine profile: ", parsed.message()));
  }
  return profile;
}

std::vector<std::string> FindStale(const MachineProfile& profile,
                                   const MachineReport& report) {
  std::vector<std::string> reasons;
  const auto compare = [&](const char* what, const std::string& then,
                           const std::string& now) {
    if (then == now) return;
    reasons.push_back(
        absl::StrCat("the ", what, " was '", then, "' and is '", now, "'"));
  };
  compare("machine", profile.machine_id, report.machine_id);
  compare("kernel", profile.kernel, report.kernel);
  compare("processor", profile.processor, report.processor.model);
  for (const PathReport& path : report.paths) {
    const auto measured =
        std::find_if(profile.paths.begin(), profile.paths.end(),
                     [&](const PathProfile& p) { return p.path == path.path; });
    if (measured == profile.paths.end()) {
      reasons.push_back(
          absl::StrCat("path '", path.path, "' was not measured"));
      continue;
    }
    std::vector<std::string> drives;
    for (const DriveReport& drive : path.drives) {
      drives.push_back(IdentityOf(drive));
    }
    const std::string what = absl::StrCat("drive behind '", path.path, "'");
    compare(what.c_str(), absl::StrJoin(measured->drives, ", "),
            absl::StrJoin(drives, ", "));
  }
  for (const TierReport& tier : report.tiers) {
    AddStaleTier(profile, tier, &reasons);
  }
  return reasons;
}

}  // namespace terrace
