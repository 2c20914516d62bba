// Both of NVIDIA's libraries, as far as a report asks them: one GPU of 80 GiB
// and compute capability 9.0, under the UUID "GPU-1".
#include <cstring>

extern "C" {

struct Memory {
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

int cuDriverGetVersion(int* version) {
  *version = 13000;
  return 0;
}
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** device) {
  static int gpu = 0;
  *device = &gpu;
  return std::strcmp(uuid, "GPU-1") == 0 ? 0 : 6;
}
int nvmlDeviceGetMemoryInfo(void*, Memory* memory) {
  *memory = {80ull << 30, 1, 2};
  return 0;
}
int nvmlDeviceGetCudaComputeCapability(void*, int* major, int* minor) {
  *major = 9;
  *minor = 0;
  return 0;
}
}
