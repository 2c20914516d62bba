#include <dlfcn.h>

#include <memory>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "machine/facts.h"

namespace terrace {
namespace {

constexpr char kDriver[] = "/proc/driver/nvidia";

struct CloseLibrary {
  void operator()(void* library) const { dlclose(library); }
};
using Library = std::unique_ptr<void, CloseLibrary>;

Library Load(const std::string& name) {
  return Library(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL));
}

template <typename Function>
Function* Find(const Library& library, const char* name) {
  return reinterpret_cast<Function*>(dlsym(library.get(), name));
}

// "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May ..." or
// "... Open Kernel Module for x86_64  580.65.06  Release Build ...": the first
// word with a dot that starts with a digit.
std::string VersionIn(const std::string& text) {
  for (const absl::string_view word :
       absl::StrSplit(text, absl::ByAnyChar(" \t\n"), absl::SkipEmpty())) {
    if (word[0] >= '0' && word[0] <= '9' && absl::StrContains(word, ".")) {
      return std::string(word);
    }
  }
  return "";
}

// cuDriverGetVersion needs no initialized driver, and leaves it so: a process
// that initialized it may not fork.
void AskCuda(const std::string& name, GpuReport* report) {
  const Library cuda = Load(name);
  if (cuda == nullptr) {
    report->cuda_error = absl::StrCat(name, " cannot be loaded");
    return;
  }
  const auto get_version = Find<int(int*)>(cuda, "cuDriverGetVersion");
  int version = 0;
  if (get_version == nullptr || get_version(&version) != 0) {
    report->cuda_error = absl::StrCat(name, " does not tell its version");
    return;
  }
  report->has_cuda = true;
  report->cuda_version = version;
}

// The few calls of NVIDIA's management library that are needed, by the
// signatures that it has kept since its first version: 0 is success, a device
// is an opaque pointer.
class Management {
 public:
  explicit Management(const std::string& name) : library_(Load(name)) {
    if (library_ == nullptr) return;
    const auto init = Find<int()>(library_, "nvmlInit_v2");
    shutdown_ = Find<int()>(library_, "nvmlShutdown");
    by_uuid_ =
        Find<int(const char*, void**)>(library_, "nvmlDeviceGetHandleByUUID");
    memory_ = Find<int(void*, Memory*)>(library_, "nvmlDeviceGetMemoryInfo");
    compute_ = Find<int(void*, int*, int*)>(
        library_, "nvmlDeviceGetCudaComputeCapability");
    is_ready_ = init != nullptr && shutdown_ != nullptr &&
                by_uuid_ != nullptr && memory_ != nullptr &&
                compute_ != nullptr && init() == 0;
  }
  ~Management() {
    if (is_ready_) shutdown_();
  }
  Management(const Management&) = delete;
  Management& operator=(const Management&) = delete;

  void Complete(GpuDeviceReport* device) const {
    void* handle = nullptr;
    if (!is_ready_ || by_uuid_(device->uuid.c_str(), &handle) != 0) return;
    Memory memory = {};
    if (memory_(handle, &memory) == 0) {
      device->memory_bytes = static_cast<int64_t>(memory.total);
    }
    int major = 0;
    int minor = 0;
    if (compute_(handle, &major, &minor) == 0) {
      device->compute_major = major;
      device->compute_minor = minor;
    }
  }

 private:
  struct Memory {  // nvmlMemory_t
    unsigned long long total;
    unsigned long long free;
    unsigned long long used;
  };

  Library library_;
  bool is_ready_ = false;
  int (*shutdown_)() = nullptr;
  int (*by_uuid_)(const char*, void**) = nullptr;
  int (*memory_)(void*, Memory*) = nullptr;
  int (*compute_)(void*, int*, int*) = nullptr;
};

constexpr char kPci[] = "/sys/bus/pci/devices";

// Class 3 is "display controller"; data centre parts say "3D controller".
int CountControllers(const PseudoFiles& files) {
  int count = 0;
  for (const std::string& device : files.Names(kPci)) {
    const std::string about = absl::StrCat(kPci, "/", device);
    count += files.Text(about + "/vendor") == "0x10de" &&
             absl::StartsWith(files.Text(about + "/class"), "0x03");
  }
  return count;
}

}  // namespace

void ReadGpu(const PseudoFiles& files, const GpuLibraries& libraries,
             GpuReport* report) {
  const std::string driver = kDriver;
  report->display_controllers = CountControllers(files);
  report->driver_version =
      VersionIn(files.Field(driver + "/version", "NVRM version"));
  if (report->driver_version.empty()) {
    report->cuda_error = "no NVIDIA driver is loaded";
    return;
  }
  AskCuda(libraries.cuda, report);
  const Management management(libraries.management);
  for (const std::string& bus : files.Names(driver + "/gpus")) {
    const std::string about =
        absl::StrCat(driver, "/gpus/", bus, "/information");
    GpuDeviceReport device = {.name = files.Field(about, "Model"),
                              .uuid = files.Field(about, "GPU UUID"),
                              .bus = bus};
    management.Complete(&device);
    report->devices.push_back(std::move(device));
  }
}

}  // namespace terrace
