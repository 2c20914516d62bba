#include "bench/described_machine.h"

#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace terrace::bench {
namespace {

std::string FirstLineOf(const std::string& name) {
  std::ifstream file(name);
  std::string line;
  std::getline(file, line);
  return std::string(absl::StripAsciiWhitespace(line));
}

std::string OrUnknown(const std::string& text) {
  return text.empty() ? "unknown" : text;
}

std::string Processor() {
  std::ifstream file("/proc/cpuinfo");
  std::string model;
  for (std::string line; model.empty() && std::getline(file, line);) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos) {
      model = line.substr(colon + 2);
    }
  }
  return absl::StrCat(sysconf(_SC_NPROCESSORS_ONLN), " x ", OrUnknown(model));
}

// The choice in brackets of "always [madvise] never".
std::string ChoiceIn(const std::string& name) {
  const std::string line = FirstLineOf(name);
  const size_t begin = line.find('[');
  const size_t end = line.find(']');
  if (begin == std::string::npos || end == std::string::npos) {
    return OrUnknown(line);
  }
  return line.substr(begin + 1, end - begin - 1);
}

// Type and options of the mount that holds a device number.
std::string FileSystem(dev_t device) {
  std::ifstream file("/proc/self/mountinfo");
  const std::string number = absl::StrCat(major(device), ":", minor(device));
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string id, parent, at;
    fields >> id >> parent >> at;
    const size_t dash = line.find(" - ");
    if (at != number || dash == std::string::npos) continue;
    std::istringstream tail(line.substr(dash + 3));
    std::string type, source;
    tail >> type >> source;
    return absl::StrCat(type, " on ", source);
  }
  return "unknown file system";
}

// The whole drive of a partition or of itself, as /sys names it.
std::string Drive(dev_t device) {
  namespace fs = std::filesystem;
  std::error_code error;
  fs::path folder = fs::canonical(
      absl::StrCat("/sys/dev/block/", major(device), ":", minor(device)),
      error);
  if (error) return "no block device";
  if (fs::exists(folder / "partition", error)) folder = folder.parent_path();
  std::string model = FirstLineOf(folder / "device/model");
  const std::string most = FirstLineOf(folder / "queue/max_sectors_kb");
  const std::string scheduler = ChoiceIn(folder / "queue/scheduler");
  return absl::StrCat(folder.filename().string(),
                      model.empty() ? "" : absl::StrCat(" (", model, ")"),
                      ", requests of up to ", OrUnknown(most),
                      " KiB, scheduler ", scheduler);
}

std::string Behind(const std::string& folder) {
  struct stat status = {};
  if (stat(folder.c_str(), &status) != 0) return "no such folder";
  return absl::StrCat(FileSystem(status.st_dev), "; ", Drive(status.st_dev));
}

}  // namespace

std::vector<std::pair<std::string, std::string>> DescribeMachine(
    const std::vector<std::string>& folders) {
  struct sysinfo memory = {};
  sysinfo(&memory);
  utsname kernel = {};
  uname(&kernel);
  const uint64_t bytes = uint64_t{memory.totalram} * memory.mem_unit;
  std::vector<std::pair<std::string, std::string>> lines = {
      {"processor", Processor()},
      {"memory", absl::StrCat(bytes >> 20, " MiB")},
      {"kernel", absl::StrCat(kernel.sysname, " ", kernel.release)},
      {"transparent huge pages",
       ChoiceIn("/sys/kernel/mm/transparent_hugepage/enabled")}};
  for (size_t i = 0; i < folders.size(); ++i) {
    lines.emplace_back(
        folders.size() == 1 ? "path" : absl::StrCat("path ", i + 1),
        Behind(folders[i]));
  }
  return lines;
}

}  // namespace terrace::bench
