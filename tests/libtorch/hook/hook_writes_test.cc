// What dirties a tensor and what does not, and what is done about writes that
// no operation announces.
#include <ATen/ops/_foreach_add.h>
#include <torch/library.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/libtorch/hook/hook_fixture.h"

namespace terrace {
namespace {

class HookWritesTest : public HookTest {
 protected:
  // Whether the tensor's next eviction writes, after `use`.
  bool Dirties(const at::Tensor& tensor, const std::function<void()>& use) {
    hook().EvictAll();
    static_cast<void>(tensor.clone());  // here, and clean
    use();
    EXPECT_FALSE(IsCold(tensor));
    const int64_t drops = hook().stats().clean_drops;
    hook().EvictAll();
    return hook().stats().clean_drops == drops;
  }
  static float* Address(const at::Tensor& tensor) {
    return static_cast<float*>(tensor.storage()
                                   .unsafeGetStorageImpl()
                                   ->_mutable_data_ptr_no_checks()
                                   .mutable_get());
  }
};

// An operation may begin while its tensor leaves.
TEST_F(HookWritesTest, NoWriteIsLostWhileOthersEvict) {
  constexpr int kWrites = 2000;
  Make(64 << 10);
  const at::Tensor t = Managed("t", at::zeros({64}));
  std::atomic<bool> over = false;
  std::thread evicts([&] {
    while (!over) hook().EvictAll();
  });
  for (int i = 0; i < kWrites; ++i) t.add_(1);
  over = true;
  evicts.join();
  hook().EvictAll();
  EXPECT_TRUE(t.eq(kWrites).all().item<bool>()) << t[0].item<float>();
}

TEST_F(HookWritesTest, ReadsDoNotDirtyAndWritesDo) {
  Make(64 << 10);
  const at::Tensor t = Managed("t", at::randn({30, 30}));
  const std::vector<std::pair<const char*, std::function<void()>>> reads = {
      {"add", [&] { static_cast<void>(t + 1); }},
      {"mm", [&] { static_cast<void>(t.mm(t.t())); }},
      {"cat",
       [&] {
         static_cast<void>(at::cat({t, t}));
       }},
      {"copy_ from",
       [&] {
         at::zeros({30, 30}).copy_(t);
       }},
      {"foreach",
       [&] {
         static_cast<void>(
             at::_foreach_add(std::vector<at::Tensor>{t, t}, 1.5));
       }},
      {"detach", [&] { static_cast<void>(t.detach()); }},
      {"view", [&] { static_cast<void>(t.view({-1})); }}};
  for (const auto& [name, use] : reads) EXPECT_FALSE(Dirties(t, use)) << name;
  at::Tensor out = t;
  const std::vector<std::pair<const char*, std::function<void()>>> writes = {
      {"add_", [&] { t.add_(1); }},
      {"zero_", [&] { t.zero_(); }},
      {"copy_ to",
       [&] {
         t.copy_(at::ones({30, 30}));
       }},
      {"out=",
       [&] {
         at::add_out(out, at::ones({30, 30}), 1);
       }},
      {"view", [&] { t.select(0, 3).mul_(2); }},
      {"foreach",
       [&] {
         at::_foreach_add_(std::vector<at::Tensor>{at::ones({3}), t}, 1);
       }},
      {"index_put_", [&] { t.index_put_({at::arange(3)}, at::ones({30})); }}};
  for (const auto& [name, use] : writes) EXPECT_TRUE(Dirties(t, use)) << name;
}

TEST_F(HookWritesTest, ALeaseDirtiesAsItSays) {
  Make(64 << 10);
  const at::Tensor t = Managed("t", at::randn({30, 30}));
  const auto lease = [&](Hook::Access access) {
    return [&, access] { EXPECT_TRUE(hook().MakeLease(t, access).ok()); };
  };
  EXPECT_FALSE(Dirties(t, lease(Hook::Access::kRead)));
  EXPECT_TRUE(Dirties(t, lease(Hook::Access::kWrite)));
}

// What each registration says of `touch(x)`, and whether that counts as a
// write.
TEST_F(HookWritesTest, AnOperatorIsTrustedAsFarAsItSpeaks) {
  Make(64 << 10);
  const at::Tensor t = Managed("t", at::randn({30, 30}));
  using Define = std::function<void(torch::Library&)>;
  const auto kernel = [](const at::Tensor& x) { return x.sum(); };
  const auto parsed = [](const char* text, c10::AliasAnalysisKind kind,
                         std::vector<at::Tag> tags = {}) -> Define {
    return [=](torch::Library& library) {
      library.def(torch::schema(text, kind), tags);
    };
  };
  const char* const unmarked = "touch(Tensor x) -> Tensor";
  const char* const viewed = "touch(Tensor(a) x) -> Tensor(a)";
  const char* const written = "touch(Tensor(a!) x) -> Tensor";
  using Kind = c10::AliasAnalysisKind;
  const std::vector<std::tuple<const char*, Define, bool>> cases = {
      {"inferred", [&](torch::Library& l) { l.def("touch", kernel); }, true},
      {"unmarked", parsed(unmarked, Kind::FROM_SCHEMA), true},
      {"tagged",
       parsed(unmarked, Kind::FROM_SCHEMA, {at::Tag::pt2_compliant_tag}),
       false},
      {"a view", parsed(viewed, Kind::FROM_SCHEMA), false},
      {"written", parsed(written, Kind::FROM_SCHEMA), true},
      {"conservative", parsed(viewed, Kind::CONSERVATIVE), true},
      {"pure", parsed(unmarked, Kind::PURE_FUNCTION), false}};
  for (const auto& [name, define, writes] : cases) {
    SCOPED_TRACE(name);
    torch::Library library(torch::Library::FRAGMENT, "terrace_hook_test",
                           std::nullopt, __FILE__, __LINE__);
    define(library);
    if (absl::string_view(name) != "inferred") library.impl("touch", kernel);
    const auto touch = c10::Dispatcher::singleton()
                           .findSchemaOrThrow("terrace_hook_test::touch", "")
                           .typed<at::Tensor(const at::Tensor&)>();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Dirties(t, [&] { touch.call(t); }), writes);
    }
  }
}

// An interpreter's stack has its loops' counters below what it calls.
TEST_F(HookWritesTest, ACallOnADeepStackHasItsOwnArguments) {
  Make(64 << 10);
  const at::Tensor t = Managed("t", at::randn({30, 30}));
  const at::Tensor other = Managed("other", at::randn({30, 30}));
  const auto add_ =
      c10::Dispatcher::singleton().findSchemaOrThrow("aten::add_", "Tensor");
  torch::jit::Stack stack = {1, other, t, at::ones({30, 30}), 1};
  EXPECT_TRUE(Dirties(t, [&] { add_.callBoxed(stack); }));
  stack = {1, other, t, at::ones({30, 30}), 1};
  EXPECT_FALSE(Dirties(other, [&] {
    static_cast<void>(other.sum());
    add_.callBoxed(stack);
  }));
}

TEST_F(HookWritesTest, AnOperatorWithAnotherSchemaIsNoticed) {
  Make(64 << 10);
  const at::Tensor t = Managed("t", at::randn({30, 30}));
  for (const bool writes : {false, true, false}) {
    SCOPED_TRACE(writes);
    torch::Library library(torch::Library::FRAGMENT, "terrace_hook_test",
                           std::nullopt, __FILE__, __LINE__);
    library.def(writes ? "touch(Tensor(a!) x) -> ()"
                       : "touch(Tensor(a) x) -> ()");
    library.impl("touch", c10::DispatchKey::CPU, [](const at::Tensor&) {});
    const auto touch = c10::Dispatcher::singleton()
                           .findSchemaOrThrow("terrace_hook_test::touch", "")
                           .typed<void(const at::Tensor&)>();
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(Dirties(t, [&] { touch.call(t); }), writes);
    }
  }
}

TEST_F(HookWritesTest, AWriteByNoOperationIsFoundAndKept) {
  Make(64 << 10, 0, {.verify_clean = true});
  const at::Tensor plain = at::randn({30, 30});
  const at::Tensor t = Managed("t", plain.clone());
  // As an extension does that was given an address.
  EXPECT_TRUE(Dirties(t, [&] { Address(t)[100] = 5; }));
  EXPECT_EQ(hook().stats().unmarked_writes, 1);
  EvictFromMemory();
  plain.view({-1})[100] = 5;
  EXPECT_TRUE(t.equal(plain));
  // Clean drops of this tensor have ended.
  EXPECT_TRUE(Dirties(t, [] {}));
  EXPECT_EQ(hook().stats().unmarked_writes, 1);
}

}  // namespace
}  // namespace terrace
