// The parts of a MachineReport that no path has to do with, each filled in
// from the kernel's own files. Thread-safe; nothing fails, what cannot be read
// stays unknown.
#pragma once

#include <string>

#include "machine/pseudo_files.h"
#include "terrace/machine.h"

namespace terrace {

// Sizes, transparent huge pages and pools, and this process's limit of locked
// memory. Not huge_page_share.
void ReadMemory(const PseudoFiles& files, MemoryReport* report);

// Of some MiB that are mapped, advised and touched for this, the share that
// huge pages back; -1: no memory for it.
double ProbeHugePageShare();

// The tightest limits of this process's control groups, both versions, up to
// the root that it sees; a container's runtime, by its traces.
void ReadContainer(const PseudoFiles& files, ContainerReport* report);

// NVIDIA's driver, and its devices. The libraries are loaded by these names if
// they are there, asked, and let go; no device is initialized.
struct GpuLibraries {
  std::string cuda = "libcuda.so.1";
  std::string management = "libnvidia-ml.so.1";
};
void ReadGpu(const PseudoFiles& files, const GpuLibraries& libraries,
             GpuReport* report);

}  // namespace terrace
