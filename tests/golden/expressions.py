"""Expressions of Jinja, of our own wording, and what transformers' environment makes of them: `expressions.json`.

Each case is a template and its text; null where Jinja raises an error, which may name values otherwise.
"""

import json
import pathlib

from templates import NOW, render

HERE = pathlib.Path(__file__).resolve().parent
GIVEN = {
    "yes": True, "n": 7, "big": 12345678901234567000, "f": [1e16, 1e-05, -0.0, 0.1, 1.5e300], "s": "it's a Test",
    "u": "a\u200bé\u00a0\x7f\n\U0001f600", "l": [3, 1, 2], "w": ["b", "A", "c"], "d": {"b": 1, "a": [None, True, "x"]},
    "rows": [{"k": "x", "v": 2, "t": {"z": 1}}, {"k": "y", "v": 1, "t": {"z": 2}}], "schema": {"type": "array"}, "named": {"items": 5},
}
# Templates a line; \n is a new line.
CASES = r"""
{{ none is iterable }} {{ nope is iterable }} {{ s is iterable }} {{ d is iterable }} {{ n is iterable }} {{ yes is iterable }}
{{ none is sequence }} {{ nope is sequence }} {{ s is sequence }} {{ d is sequence }} {{ l is sequence }} {{ range(2) is sequence }} {{ n is sequence }} {{ l[1:] is sequence }}
{{ yes is integer }} {{ n is integer }} {{ f[0] is integer }} {{ yes is number }} {{ f[0] is number }} {{ s is number }} {{ f[0] is float }} {{ n is float }}
{{ yes is boolean }} {{ n is boolean }} {{ d is mapping }} {{ l is mapping }} {{ nope is mapping }} {{ nope is string }} {{ nope is none }} {{ none is defined }}
{{ nope is undefined }} {{ d.nope is undefined }} {{ d.nope is defined }} {{ d['nope'] is none }} {{ yes is true }} {{ n is true }} {{ yes is false }}
{% macro m() %}{% endmacro %}{{ m is callable }} {{ range is callable }} {{ s is callable }} {{ nope is callable }} {{ joiner() is callable }} {{ cycler(1) is callable }}
{{ 3 is odd }} {{ 3 is even }} {{ 9 is divisibleby 3 }} {{ 9 is divisibleby(2) }} {{ 'ab1' is lower }} {{ 'AB' is upper }} {{ n is lower }} {{ 2 is in l }} {{ 'z' is not in s }}
{{ 9 is divisibleby 0 }}
{{ 'upper' is filter }} {{ 'nope' is filter }} {{ 'odd' is test }} {{ n is sameas n }} {{ n is eq 7 }} {{ n is gt(6) }} {{ n is le 6 }} {{ s is ne s }}
{{ f }} {{ f[0] }} {{ f[1] ~ f[2] }} {{ f[0]|string }} {{ f|tojson }} {{ f|join(',') }} {{ '%s' % f[1] }} {{ '{}'.format(f[0]) }} {{ '%s'|format(f[4]) }}
{{ 1e16 }} {{ 1e-7 }} {{ 123456789.123456789 }} {{ 10 / 2 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.5 % 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1_000 }} {{ 0x1f }}
{{ 18446744073709551616 }} {{ [18446744073709551616] }} {{ {'a': 18446744073709551616}|tojson }} {{ big }} {{ big ~ '' }} {{ big + big }}
{{ [1.0, none, yes, 'q\'"', "it's"] }} {{ d }} {{ (1,) }} {{ (1, 'a') }} {{ () }} {{ {} }} {{ [] }} {{ {1: 2.5, none: (1, 2)} }}
{{ [u] }} {{ u|tojson }} {{ u|tojson(ensure_ascii=true) }} {{ {'k': u} }}
{{ nope }}{{ [nope] }}{{ nope ~ 'x' }}{{ nope|string }}{{ nope|default('d') }}{{ nope|list }}{{ nope|join }}{{ nope|length }}{{ nope|items|list }}{{ nope|trim }}{{ nope|upper }}
{{ nope.a }}
{{ nope|int }}
{{ d|tojson(2) }}|{{ d|tojson(false, 2) }}|{{ d|tojson(indent='\t') }}|{{ d|tojson(indent=0) }}|{{ d|tojson(separators=(',', ':')) }}|{{ d|tojson(sort_keys=true) }}
{{ {1: 1, none: 2, yes: 3, 1.5: 4}|tojson }} {{ []|tojson(indent=2) }} {{ {}|tojson(indent=2) }} {{ [[]]|tojson(indent=1) }} {{ 'é<&>\u2028'|tojson }}
{{ nope|tojson }}
{{ '%s and %r' % (s, s) }} {{ '%d%%' % 5 }} {{ '%5.2f|%-5s|%05d|%x' % (3.14159, 'a', 42, 255) }} {{ '%(a)s' % {'a': 1} }} {{ '%s' % [1, 1e16] }} {{ '%s' % d }}
{{ n % 2 }} {{ n * 2 % 4 + 1 ~ 'x' }} {{ 'a' ~ 1 + 2 ~ 'b' }}
{{ 1 ~ 2 ~ 3 }} {{ n ~ none ~ yes ~ d }} {{ 'a' ~ 'b' if yes else 'c' }} {{ 'a' ~ 'b' == 'ab' }} {{ 'ab' in 'a' ~ 'bc' }} {{ l ~ '' }}
{{ '12abc'|int }} {{ '12'|int }} {{ ' -1_2 '|int }} {{ '3.9'|int }} {{ 'ff'|int(base=16) }} {{ '0x1F'|int(0, 16) }} {{ none|int(-1) }} {{ 'x'|int('d') }} {{ 2.9|int }} {{ yes|int }}
{{ '1.5'|float }} {{ 'x'|float }} {{ 'x'|float(2) }} {{ 3|float }} {{ '1e3'|float }} {{ 2.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(method='ceil') }} {{ 3|round }} {{ -3|abs }}
{{ 'x'|center(6) }}| {{ 'xy'|center(width=7) }}| {{ 'abc'.center(6, '*') }} {{ 'ab'.ljust(4, '.') }} {{ 'ab'.rjust(4) }} {{ '-5'.zfill(4) }} {{ '+5'.zfill(4) }} {{ 'abc'.zfill(2) }}
{{ 0|filesizeformat }} {{ 1|filesizeformat }} {{ 999|filesizeformat }} {{ 1000|filesizeformat }} {{ 1536|filesizeformat(true) }} {{ 123456789|filesizeformat }} {{ 1e30|filesizeformat }}
{{ 'a bc def ghi'|truncate(8) }}|{{ 'a bc def ghi'|truncate(6, leeway=0) }}|{{ 'a bc def ghi'|truncate(6, true, '..', 0) }}|{{ 'abcdefgh'|truncate(5, end='', leeway=0) }}
{{ 'a b/c?é&'|urlencode }} {{ {'a b': 'c/d', 'e': 1}|urlencode }} {{ [['a', 'b']]|urlencode }} {{ 'a_b c, d'|wordcount }} {{ ''|wordcount }}
{{ '<a href="x">\'&\''|e }} {{ '<'|escape|escape }} {{ '<'|e|forceescape }} {{ '<b>'|safe + '<i>' }} {{ '<i>' + '<b>'|safe + 1|string }} {{ '<b>'|safe ~ '<i>' }} {{ 1 + 2 - 3 + n }} {{ l + [4] }}
{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('>') }}|{{ 'a\n'|indent(width=1, first=true) }}
{{ s|title }} {{ s.title() }} {{ 'hello-world foo'|title }} {{ "x1y o'neil".title() }} {{ s|capitalize }} {{ 'ABC'.capitalize() }} {{ s|upper }} {{ 5|upper }} {{ s|lower }}
{{ ' \t\x1c a '|trim }}| {{ 'xxaxx'|trim('x') }} {{ 'xyaxy'.strip('xy') }} {{ ' a '.lstrip() }}| {{ ' a '.rstrip() }}| {{ 'aab'.lstrip('a') }} {{ 'abb'.rstrip('b') }} {{ ' a '.strip(none) }}
{{ 'aXbX'|replace('X', '-') }} {{ 'aXbX'|replace('X', '-', 1) }} {{ 'aXbX'.replace('X', '', 1) }} {{ 'ab'.replace('', '-') }} {{ 5|replace('5', 'f') }}
{{ 'a,b,c'.split(',') }} {{ 'a,b,c'.split(',', 1) }} {{ 'a,b,c'.rsplit(',', 1) }} {{ ' a  b c '.split() }} {{ ' a  b c '.split(none, 1) }} {{ ' a  b c '.rsplit(none, 1) }} {{ ''.split() }} {{ ''.split(',') }} {{ 'a b'.split(maxsplit=1) }}
{{ 'a'.split('') }}
{{ 'a=b=c'.partition('=') }} {{ 'a=b=c'.rpartition('=') }} {{ 'abc'.partition('=') }} {{ 'abc'.rpartition('=') }} {{ 'a\nb\r\nc\x0b'.splitlines() }} {{ 'a\nb'.splitlines(true) }}
{{ 'prefix'.removeprefix('pre') }} {{ 'prefix'.removesuffix('fix') }} {{ 'x'.removeprefix('y') }} {{ 'abcabc'.find('c') }} {{ 'abcabc'.rfind('c') }} {{ 'abc'.find('z') }} {{ 'abcabc'.find('a', 1) }} {{ 'abcabc'.count('bc') }} {{ 'éa'.index('a') }} {{ 'abab'.rindex('a') }} {{ 'aaaa'.count('a', 1, -1) }}
{{ 'abc'.index('z') }}
{{ 'abc'.startswith('ab') }} {{ 'abc'.startswith(('x', 'a')) }} {{ 'abc'.endswith('bc') }} {{ 'abc'.startswith('b', 1) }} {{ 'abc'.endswith(('x',)) }}
{{ 'abc'.startswith(['a']) }}
{{ 'ab'.isalpha() }} {{ 'a1'.isalnum() }} {{ '12'.isdigit() }} {{ '1.2'.isnumeric() }} {{ ' \x1c'.isspace() }} {{ ''.isspace() }} {{ 'aB'.islower() }} {{ 'A1'.isupper() }} {{ 'é'.isascii() }} {{ '12'.isdecimal() }}
{{ ','.join(['a', 'b']) }} {{ ','.join('ab') }} {{ '-'.join(d) }} {{ '{} {1}'.format(1, 2) if false else '{0} {1}'.format(1, 'b') }} {{ '{a:>4}|{a:<4}|{a:^5}'.format(a='x') }} {{ '{:.2f} {:05d} {:,}'.format(3.14159, 42, 1234567) }} {{ '{0[k]}'.format(rows[0]) }} {{ '{{}}'.format() }} {{ '{!r}'.format('a') }}
{{ ','.join([1]) }}
{{ d.get('b') }} {{ d.get('z') }} {{ d.get('z', 3) }} {{ d.keys()|list }} {{ d.values()|list }} {{ d.items()|list }} {{ d|items|list }} {{ d.copy() }} {{ l.index(2) }} {{ l.count(3) }} {{ (1, 2).index(2) }} {{ dict(a=1, b=2) }} {{ dict({'a': 1}, c=2) }}
{{ l.append(1) }}
{{ d.pop('b') }}
{{ schema.items is defined }} {{ 'y' if schema.items else 'n' }} {{ schema['items'] is mapping }} {{ schema['items'].type is defined }} {{ named.items is mapping }} {{ named['items'] }} {{ schema.get is defined }} {{ schema.nope is defined }} {% for k, v in named.items() %}{{ k }}{{ v }}{% endfor %}
{% set ns = namespace(items=1, x=2) %}{{ ns.items }}{% set ns.items = 3 %}{{ ns.items + ns.x }}
{{ w|sort }} {{ w|sort(true) }} {{ w|sort(case_sensitive=true) }} {{ rows|sort(attribute='v')|map(attribute='k')|join }} {{ rows|sort(false, false, 'v')|map(attribute='t.z')|list }} {{ d|dictsort }} {{ {'b': 1, 'A': 2}|dictsort(true) }} {{ {'b': 1, 'a': 2}|dictsort(false, 'value') }} {{ d|dictsort(reverse=true) }}
{{ ['a', 'A', 'b']|unique|list }} {{ ['a', 'A']|unique(true)|list }} {{ l|min }} {{ l|max }} {{ rows|max(attribute='v') }} {{ []|max is defined }} {{ l|sum }} {{ rows|sum('v') }} {{ rows|sum(attribute='v', start=10) }} {{ l|first }} {{ l|last }} {{ d|first }} {{ 'abc'|last }} {{ []|first is defined }} {{ l|reverse|list }} {{ 'abc'|reverse }}
{{ rows|map(attribute='v')|list }} {{ rows|map(attribute='q', default='-')|list }} {{ w|map('upper')|join }} {{ rows|selectattr('v', 'gt', 1)|list|length }} {{ rows|selectattr('k', 'equalto', 'x')|map(attribute='k')|list }} {{ rows|rejectattr('k', 'in', ['x'])|list|length }} {{ l|select('odd')|list }} {{ l|reject('odd')|list }} {{ [0, 1, '']|select|list }} {{ rows|selectattr('nope')|list }} {{ w|map('replace', 'b', 'q')|list }}
{{ l|batch(2, 0)|list }} {{ l|slice(2)|list }} {{ l|length }} {{ 'éa'|length }} {{ d|count }} {{ l|list }} {{ 'ab'|list }} {{ d|list }} {{ l|join(', ') }} {{ rows|join(',', attribute='k') }} {{ rows|join('|', 't.z') }} {% for g in rows|groupby('k') %}{{ g.grouper }}{{ g.list|length }}{% endfor %}
{{ ''|default('d') }} {{ ''|default('d', true) }} {{ ''|default('d', boolean=true) }} {{ none|default('d') }} {{ none|d('d', true) }} {{ nope|default }}| {{ nope|default(default_value=3) }} {{ ''|default('d', boolean=false) }}|
{{ none|length }}
{{ s|attr('nope') is defined }} {{ l[-1] }} {{ l[1:] }} {{ l[::-1] }} {{ 'abc'[1] }} {{ 'abc'[::-1] }} {{ l[:-1] }} {{ l[5] is defined }} {{ 'abc'[5] is defined }} {{ l[-2:] }} {{ l[:2]|length }}
{{ l * 2 }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 'a' in 'abc' }} {{ 'b' in d }} {{ 5 not in l }} {{ not yes }} {{ 1 < n <= 7 }} {{ 1 if none }}| {{ 1 == 1.0 }} {{ yes == 1 }} {{ '1' == 1 }} {{ yes + 1 }} {{ [1, 2] == [1, 2] }} {{ (1, 2) == [1, 2] }} {{ 'a' < 'b' }} {{ none == false }}
{{ none + 'x' }}
{{ 'x' + 1 }}
{{ 1 / 0 }}
{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b {% set c = cycler('x', 'y') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{% set _ = c.reset() %}{{ c.current }}
{% for x in l %}{{ loop.index }}{{ loop.first }}{{ loop.last }}{{ loop.revindex0 }}{{ loop.length }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }}{{ loop.changed(x) }}{{ loop.depth }} {% else %}none{% endfor %}{% for x in [] %}{% else %}else{% endfor %}
{% for x in l if x > 1 %}{{ loop.index }}{{ x }}{% endfor %} {% for k in d %}{{ k }}{% endfor %} {% for a, b in [(1, 2)] %}{{ a + b }}{% endfor %} {% for x in l recursive %}{{ x }}{% endfor %} {% for c in 'ab' %}{{ c }}.{% endfor %}
{% for x in range(5) %}{% if x == 1 %}{% continue %}{% endif %}{% if x == 3 %}{% break %}{% endif %}{{ x }}{% endfor %} {{ range(3)|list }} {{ range(1, 7, 2)|list }} {{ range(3) }}
{% macro f(a, b=2, c='x' ~ b) %}{{ a }}{{ b }}{{ c }}{{ caller() if caller }}{% endmacro %}{{ f(1) }} {{ f(1, c=3) }} {{ f(b=1, a=9) }} {% call f(4) %}body{% endcall %} {% call(x) g() %}{{ x }}{% endcall %}{% macro g() %}{{ caller(5) }}{% endmacro %}
{% set x %}a{{ n }}{% endset %}{{ x }} {% set x|upper %}b{% endset %}{{ x }} {% set a, b = 1, 2 %}{{ a }}{{ b }} {% filter upper %}c{% endfilter %} {% with q = 1 %}{{ q }}{% endwith %}{{ q }} {% if false %}{{ x|nofilter }}{% endif %}
A\n{%- generation -%}\n  B\n{% endgeneration %}\nC
{% for x in l %}\n  {% generation %}\n  {{ x }}{{ loop.last }}{% set x = 9 %}{{ x }}\n  {% endgeneration %}\n{{ x }}{% endfor %}{% generation %}{% endgeneration %}.
a\n  {% if yes %}\n  b\n  {%+ if yes %}c{% endif +%}\n  {# d #}\n  {{ n }}\n{{- n -}}\n e {% raw %}{{ x }} {% y %}{% endraw %} {%- if yes -%} f {% endif -%} g
{{ 'a' 'b' }} {{ 'tab\there' }} {{ 'q\'s' }} {{ "\u00e9\x41" }} {{ 'back\\slash' }} {{ '\d' }} {{ True }} {{ None }} {{ false }} {{ [1, 2,] }} {{ 'x'if 1 }} {{ -n }} {{ +n }} {{ - 2 ** 2 }} {{ n if n is defined and n > 3 else 0 }}
{{ raise_exception('stop ' ~ n) }}
{{ namespace(_a=1) }}
{{ strftime_now('%Y-%m-%d %H:%M:%S %a %A %b %B %h %d %e %j %y %C %p %I %l %k %M %S %n%t%% %D %F %T %R %r %c %x %X') }}
{{ strftime_now('%u %w %U %W %V %G %g %s %P %-d %-m %-H %-I %-j %-M %_d %_H %0e %^a %^B %#p %5Y %E %q %') }}
{{ strftime_now('%Ey %Od %10d %-y %_j %05m %+ %f %Z|%z|%L %v %i %N %-') }}
"""


def make():
    cases = []
    for line in CASES.strip().split("\n"):
        template = line.replace("\\n", "\n") if line[0] != "{" or "generation" in line else line
        cases.append([template, render(template, {}, GIVEN).get("expected")])
    lines = ",\n".join(json.dumps(case, ensure_ascii=False) for case in cases)
    head = json.dumps({"now": NOW.isoformat(), "given": GIVEN}, ensure_ascii=False)[:-1]
    (HERE / "expressions.json").write_text(f'{head}, "cases": [\n{lines}\n]}}\n')
    print(f"expressions.json: {len(cases)} templates, {sum(case[1] is None for case in cases)} of them errors")


if __name__ == "__main__":
    make()
