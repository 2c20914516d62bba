// What a process may do with the page that tells it of stopped loops, by raw
// calls, and which words are its own.
#include "daemon/watch/loop_pages.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

const absl::Time kFirst = absl::UnixEpoch() + absl::Hours(1);
absl::Time Behind(double seconds) { return kFirst + absl::Seconds(seconds); }

// As the process has it.
class Seen {
 public:
  explicit Seen(OwnDescriptor file) : file_(std::move(file)) {
    void* const mapped =
        mmap(nullptr, LoopPage::kBytes, PROT_READ, MAP_SHARED, file_.get(), 0);
    EXPECT_NE(mapped, MAP_FAILED);
    page_ = static_cast<const LoopPage*>(mapped);
  }
  ~Seen() { munmap(const_cast<LoopPage*>(page_), LoopPage::kBytes); }

  const LoopPage* operator->() const { return page_; }
  int fd() const { return file_.get(); }
  double SilenceOf(size_t loop) const {
    return absl::ToDoubleSeconds(
        absl::Nanoseconds(page_->silences[loop].load()));
  }

 private:
  const OwnDescriptor file_;
  const LoopPage* page_;
};

TEST(LoopPagesTest, WhoHasItCanReadItAlone) {
  const auto pages = std::make_shared<LoopPages>();
  const LoopTable table;
  auto page = pages->Add(1);
  ASSERT_TRUE(page.ok()) << page.status();
  const Seen seen(page->TakeFile());
  const int fd = seen.fd();
  EXPECT_EQ(seen->magic, LoopPage::kMagic);
  struct stat found = {};
  ASSERT_EQ(fstat(fd, &found), 0);
  EXPECT_EQ(found.st_size, LoopPage::kBytes);
  EXPECT_EQ(found.st_mode & 0777, 0400u);
  const uint64_t zero = 0;
  EXPECT_EQ(pwrite(fd, &zero, sizeof(zero), 0), -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(ftruncate(fd, 0), -1);
  EXPECT_EQ(ftruncate(fd, 2 * LoopPage::kBytes), -1);
  EXPECT_EQ(fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                      LoopPage::kBytes),
            -1);
  EXPECT_EQ(errno, EPERM);
  EXPECT_EQ(fcntl(fd, F_ADD_SEALS, F_SEAL_WRITE), -1);
  EXPECT_EQ(mmap(nullptr, LoopPage::kBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                 fd, 0),
            MAP_FAILED);
  auto* const mapped = const_cast<LoopPage*>(&*seen.operator->());
  EXPECT_EQ(mprotect(mapped, LoopPage::kBytes, PROT_READ | PROT_WRITE), -1);
  EXPECT_EQ(madvise(mapped, LoopPage::kBytes, MADV_REMOVE), -1);
  // Nor by another description of the file, whoever may open one.
  const int anew =
      open(absl::StrCat("/proc/self/fd/", fd).c_str(), O_RDWR | O_CLOEXEC);
  if (anew >= 0) {
    EXPECT_EQ(pwrite(anew, &zero, sizeof(zero), 0), -1);
    EXPECT_EQ(fallocate(anew, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
                        LoopPage::kBytes),
              -1);
    close(anew);
  }
  // The daemon writes as before, also what the process has not mapped.
  munmap(mapped, LoopPage::kBytes);
  pages->Write(table, kFirst);
  void* const again =
      mmap(mapped, LoopPage::kBytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
  ASSERT_EQ(again, mapped);
  EXPECT_EQ(seen->turns, 1u);
}

TEST(LoopPagesTest, EachHasTheWordsOfItsOwnLoops) {
  const auto pages = std::make_shared<LoopPages>();
  const auto table = std::make_shared<LoopTable>();
  const int64_t one = table->NewSession();
  const int64_t other = table->NewSession();
  auto page = pages->Add(one);
  auto others = pages->Add(other);
  ASSERT_TRUE(page.ok() && others.ok());
  const Seen seen(page->TakeFile());
  const Seen others_see(others->TakeFile());
  const WatchedLoop mover =
      table->Add({.kind = "mover", .process = 1, .session = one});
  const WatchedLoop disk = table->Add({"files", 1, 1, one});
  const WatchedLoop pool = table->Add({.kind = "checksums", .number = 0});
  const WatchedLoop turns = table->Add({.kind = "checksums", .number = 1});
  const auto write = [&](absl::Time now) { pages->Write(*table, now); };
  for (const WatchedLoop* each : {&mover, &disk, &pool}) {
    each->heartbeat().Ask(Behind(0));
  }
  write(Behind(1));
  EXPECT_EQ(seen.SilenceOf(LoopPage::kMover), 0);
  write(Behind(3));
  EXPECT_EQ(seen->turns, 2u);
  EXPECT_EQ(seen.SilenceOf(LoopPage::kMover), 3);
  EXPECT_EQ(seen.SilenceOf(LoopPage::kFiles + 1), 3);
  EXPECT_EQ(seen.SilenceOf(LoopPage::kFiles), 0);
  EXPECT_EQ(others_see.SilenceOf(LoopPage::kMover), 0);
  // It was for nobody that one of the threads for checksums stopped.
  EXPECT_EQ(seen.SilenceOf(LoopPage::kChecksums), 0);
  pool.heartbeat().SetServed(other);
  write(Behind(4));
  EXPECT_EQ(seen.SilenceOf(LoopPage::kChecksums), 0);
  EXPECT_EQ(others_see.SilenceOf(LoopPage::kChecksums), 4);
  // And for all, once none is left.
  turns.heartbeat().Ask(Behind(4));
  write(Behind(6));
  EXPECT_EQ(seen.SilenceOf(LoopPage::kChecksums), 2);
  for (const WatchedLoop* each : {&mover, &disk, &pool, &turns}) {
    each->heartbeat().Beat();
  }
  write(Behind(7));
  for (size_t i = 0; i < LoopPage::kLoops; ++i) {
    EXPECT_EQ(seen.SilenceOf(i), 0) << i;
    EXPECT_EQ(others_see.SilenceOf(i), 0) << i;
  }
}

// What a session leaves is written no more, and nobody else's.
TEST(LoopPagesTest, APageEndsWithItsSession) {
  const auto pages = std::make_shared<LoopPages>();
  const LoopTable table;
  auto page = pages->Add(1);
  ASSERT_TRUE(page.ok());
  const Seen seen(page->TakeFile());
  pages->Write(table, kFirst);
  *page = OwnLoopPage();
  auto next = pages->Add(2);
  ASSERT_TRUE(next.ok());
  pages->Write(table, kFirst);
  EXPECT_EQ(seen->turns, 1u);
  EXPECT_EQ(Seen(next->TakeFile())->turns, 1u);
}

TEST(LoopPagesTest, SessionsComeAndGoWhileTheWatchWrites) {
  const auto pages = std::make_shared<LoopPages>();
  const LoopTable table;
  std::atomic<bool> ends = false;
  std::thread watch([&] {
    while (!ends) pages->Write(table, kFirst);
  });
  std::vector<std::thread> sessions;
  for (int i = 0; i < 3; ++i) {
    sessions.emplace_back([&, i] {
      for (int round = 0; round < 2000; ++round) {
        auto page = pages->Add(i + 1);
        ASSERT_TRUE(page.ok()) << page.status();
      }
    });
  }
  for (std::thread& each : sessions) each.join();
  ends = true;
  watch.join();
}

}  // namespace
}  // namespace terrace
