"""What counts as a member and as a method, and which class has too many."""

import unittest

import classes
from exceptions import Exceptions
from tree_case import TreeCase, findings


def counts(text):
    """name -> (members, methods)."""
    return {one.name: (len(one.members), len(one.methods))
            for one in classes.classes(text)}


def python_counts(text):
    return {one.name: (len(one.members), len(one.methods))
            for one in classes.python_classes(text)}


def count(body):
    return counts('class X {\n' + body + '\n};\n')['X']


class ClassesTest(TreeCase):
    def test_members(self):
        for body, members in [
                ('int a_;', 1),
                ('int a_, b_ = 2;', 2),
                ('std::map<int, std::pair<int, int>> a_;', 1),
                ('int a_{3}; int b_ = {}; int c_[3] = {1, 2, 3};', 3),
                ('std::function<void(int)> f_;', 1),
                ('std::function<void()> f_ = [](int x) { g(); };', 1),
                ('int a_ ABSL_GUARDED_BY(mutex_) = 0;', 1),
                ('alignas(64) std::atomic<int> a_ = f(1);', 1),
                ('static constexpr int kA = 1; static const int kB;', 0),
                ('using A = int; typedef int B; friend class C;', 0),
                ('struct A; enum class B : int { kA, kB };', 0),
                ('struct A { int a; int b; };', 0),
                ('struct A { int a; } a_; struct { int b; } b_[2];', 2),
                ('public:\n int a_;\n private:\n int b_;', 2),
                ('// int a_;\n /* int b_; */ const char* c_ = "int d_;";', 1),
                ('#define X int a_;\n int b_;', 1),
                ('static_assert(sizeof(int) == 4);', 0),
                ('struct stat stat_;', 1)]:
            with self.subTest(body=body):
                self.assertEqual(count(body), (members, 0))

    def test_methods(self):
        for body, methods in [
                ('void f();', 1),
                ('int f() const { return g({1, 2}); }', 1),
                ('X() : a_(1), b_{2} {}', 1),
                ('explicit X(int a)\n : a_(a),\n   b_(f()) { g(); }', 1),
                ('~X() override; X(const X&) = delete; X(X&&) = default;', 1),
                ('X& operator=(const X&) = delete;', 0),
                ('bool operator==(const X&) const; X& operator=(X&& x) {}', 2),
                ('bool operator<(const X& x) const { return a < x.a; }', 1),
                ('operator bool() const { return true; }', 1),
                ('virtual void f() = 0;', 1),
                ('template <typename T, int N = 3> T f(T t) { return t; }', 1),
                ('static std::vector<int> f(std::function<void(int)> g);', 1),
                ('friend bool operator==(const X&, const X&) = default;', 0),
                ('friend void f(int) { g(); }', 0),
                ('void f() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);', 1),
                ('[[nodiscard]] int f(int a = 3, int b = {});', 1),
                ('struct stat f() const { return {}; }', 1),
                ('void f() { struct A { int a; void g() {} }; A a; }', 1)]:
            with self.subTest(body=body):
                self.assertEqual(count(body), (0, methods))

    def test_each_class_counts_for_itself(self):
        text = '''namespace n {
class ABSL_LOCKABLE A final : public B<int()>, private C {
 public:
  struct Inner { int a; int b; class Deep { int c; }; };
  enum class E { kOne };
  A() {}

 private:
  Inner inner_;
};
struct A::Rep { int a; void f() {} };
template <class T> union U { T t; int i; };
struct D { int x; } d;
struct E f() { return {}; }
}  // namespace n
'''
        self.assertEqual(counts(text), {
            'A': (1, 1), 'Inner': (2, 0), 'Deep': (1, 0), 'A::Rep': (1, 1),
            'U': (2, 0), 'D': (1, 0)})

    def test_the_limits(self):
        def text(members, methods):
            return ('\nstruct X {\n' + '  int a;\n' * members
                    + '  int f() { return 1; }\n' * methods + '};\n')
        self.assert_clean({'aio/x.cc': text(20, 30)})
        self.assert_found({'aio/x.cc': text(21, 0)}, 'aio/x.cc:2',
                          'X has 21 data members')
        self.assert_found({'aio/x.cc': text(0, 31)}, 'aio/x.cc:2',
                          'X has 31 methods')

    def test_classes_of_python(self):
        self.assertEqual(python_counts('''
class A:
    other = 1

    def __init__(self):
        self.a, self.b = 1, 2
        self.a = 3
        self.b.c = 4

    @property
    async def f(self):
        self.d: int = 5

    class B:
        field: int

        def g(self, other):
            other.e = self.f = 1
'''), {'A': (3, 2), 'B': (2, 1)})
        methods = '\n'.join(f'    def f{i}(self): pass' for i in range(31))
        path = 'python/terrace/_base/x.py'
        self.assert_found({path: f'\nclass X:\n{methods}\n'}, f'{path}:2',
                          'X has 31 methods')

    def test_exceptions(self):
        large = 'struct X {\n' + '  int a;\n' * 21 + '};\n'
        one = Exceptions({'aio/x.cc': ['X']}, [])
        self.assertEqual(findings({'aio/x.cc': large}, one), [])
        # Elsewhere it is none.
        both = {'aio/x.cc': large, 'aio/y.cc': large}
        self.assertEqual(len(findings(both, one)), 1)
        for files in ({'aio/x.cc': 'struct X {};\n'},
                      {'aio/x.cc': 'struct Y {};\n'}, {'aio/y.cc': '\n'}):
            found = findings(files, one)
            self.assertEqual(len(found), 1, found)
            self.assertIn('aio/x.cc: X needs no exception', found[0])


if __name__ == '__main__':
    unittest.main()
