// The allocator in a library that is opened while tensors exist, as a Python
// extension is. This program has none of Terrace itself.
#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <dlfcn.h>

#include "gtest/gtest.h"

namespace {

TEST(LoadedLibrary, InstallsItsAllocatorWhenToldTo) {
  c10::Allocator* const own = c10::GetAllocator(at::kCPU);
  const at::Tensor before = at::ones({1000});
  // Never closed: tensors may outlive everything.
  void* const library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(library, nullptr) << dlerror();
  const auto find = [&]<typename Function>(const char* name, Function** found) {
    *found = reinterpret_cast<Function*>(dlsym(library, name));
    ASSERT_NE(*found, nullptr) << name;
  };
  bool (*install)() = nullptr;
  bool (*uninstall)() = nullptr;
  void (*make)(float, at::Tensor*) = nullptr;
  int64_t (*used)() = nullptr;
  find("InstallPlacement", &install);
  find("UninstallPlacement", &uninstall);
  find("MakeInArena", &make);
  find("UsedInArena", &used);
  // Opening it has changed nothing.
  EXPECT_EQ(c10::GetAllocator(at::kCPU), own);
  ASSERT_TRUE(install());
  EXPECT_NE(c10::GetAllocator(at::kCPU), own);
  at::Tensor made;
  make(3, &made);
  EXPECT_EQ(used(), 4096);
  at::Tensor outside = made + before;
  EXPECT_EQ(outside.sum().item<float>(), 4000);
  EXPECT_EQ(used(), 4096);
  ASSERT_TRUE(uninstall());
  EXPECT_EQ(c10::GetAllocator(at::kCPU), own);
  EXPECT_EQ(made.sum().item<float>(), 3000);
  made.reset();
  EXPECT_EQ(used(), 0);
}

}  // namespace
