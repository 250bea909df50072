"""The style sheet of a report: one column of text, light and dark, no fonts from elsewhere."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--paper:#fdfdfc;--ink:#1b2430;--soft:#586474;--line:#dcdfe3;
--certified:#1f4e79;--realised:#0b7a5f;--wrong:#b3261e;--wash:#f2f4f3;--tint:#e4f1ed}
@media (prefers-color-scheme:dark){:root{--paper:#11161c;--ink:#e4e8ec;--soft:#9aa7b5;
--line:#2c3641;--certified:#86b6e4;--realised:#4cc9a4;--wrong:#ff8a80;--wash:#182029;
--tint:#15302b}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;overflow-wrap:break-word;background:var(--paper);color:var(--ink);
font:16px/1.6 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue",Arial,sans-serif}
main{max-width:1000px;margin:0 auto;padding:64px 28px 40px}
h1,h2.part,.figures dd{font-family:Charter,"Bitstream Charter","Sitka Text",Cambria,Georgia,serif}
.kicker{margin:0 0 14px;color:var(--soft);font-size:14px}
h1{font-size:44px;line-height:1.12;letter-spacing:-.015em;font-weight:600;margin:0 0 18px;
max-width:18em;text-wrap:balance}
.lede{font-size:20px;line-height:1.5;max-width:36em;margin:0 0 14px}
.note{color:var(--soft);max-width:48em;margin:0;font-size:15px}
.figures{display:grid;grid-template-columns:repeat(4,1fr);gap:0;margin:44px 0 0;
border-top:2px solid var(--ink);border-bottom:1px solid var(--line)}
.figures div{padding:16px 18px 18px 0;display:flex;flex-direction:column}
.figures div+div{padding-left:18px;border-left:1px solid var(--line)}
.figures dt{font-size:14px;line-height:1.4;color:var(--soft);order:2}
.figures dd{margin:0 0 6px;font-size:32px;line-height:1.15;white-space:nowrap}
h2.part{font-size:29px;font-weight:600;letter-spacing:-.01em;line-height:1.2;
margin:76px 0 0;padding-top:18px;border-top:2px solid var(--ink)}
.aim{color:var(--soft);margin:2px 0 0}
section{margin-top:36px}
h3{font-size:18px;line-height:1.35;margin:0 0 8px;font-weight:650}
p{margin:0 0 10px;max-width:42em}
.pair{display:grid;grid-template-columns:repeat(2,minmax(0,1fr));gap:0 56px}
.beside{display:grid;grid-template-columns:minmax(0,4fr) minmax(0,6fr);gap:12px 48px;
align-items:start;padding-bottom:8px}
.facts{display:grid;grid-template-columns:max-content 1fr;gap:3px 20px;margin:0}
.facts dt{color:var(--soft)}
.facts dd{margin:0;overflow-wrap:anywhere}
.claim{background:var(--tint);border-radius:10px;padding:24px 28px 18px}
.claim .lead{font-size:19px;line-height:1.5;max-width:none}
.claim p{max-width:none}
.scale{height:8px;border-radius:4px;margin:22px 0 8px;position:relative;
background:linear-gradient(90deg,var(--realised),var(--line) 50%,var(--wrong))}
.scale b{position:absolute;top:-6px;width:3px;height:20px;margin-left:-1px;background:var(--ink)}
.ends{display:flex;justify-content:space-between;gap:12px;color:var(--soft);font-size:14px}
ul{margin:0;padding:0;list-style:none}
li{padding:4px 0 4px 18px;position:relative;overflow-wrap:anywhere}
li:before{content:"";position:absolute;left:2px;top:.98em;width:6px;height:2px;
background:var(--soft)}
.tag{font-size:13px;white-space:nowrap;color:var(--soft)}
.tag.assumed,.FAIL{color:var(--wrong);font-weight:650}
.PASS{color:var(--realised)}
.open{color:var(--soft)}
figure{margin:0;min-width:0}
figcaption{font-size:14px;color:var(--soft);margin-bottom:6px}
svg{display:block;width:100%;height:auto}
.swatch{display:inline-block;width:.7em;height:.7em;border-radius:50%;margin-right:.4em}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:14.5px;font-variant-numeric:tabular-nums}
th{font-weight:500;color:var(--soft);text-align:right;vertical-align:bottom;line-height:1.3}
th,td{padding:6px 0 6px 18px;border-bottom:1px solid var(--line);text-align:right}
thead th{border-bottom:1px solid var(--soft)}
th:first-child,td:first-child{text-align:left;padding-left:0}
td{white-space:nowrap}.checks td{white-space:normal}
.checks th,.checks td{text-align:left}
.checks td{vertical-align:top}
.checks small{display:block;font-size:13.5px;line-height:1.4}
.checks+p{margin-top:14px}
.steps li{padding:0 0 14px}
.steps li:before{display:none}
code{font:13.5px/1.5 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
pre{margin:4px 0 0;padding:10px 14px;background:var(--wash);border-radius:6px;
white-space:pre-wrap;overflow-wrap:anywhere}
.technical{font-size:14px}
.technical dd{font:12.5px/1.7 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
a{color:var(--certified)}
footer{margin-top:64px;padding-top:16px;border-top:1px solid var(--line);color:var(--soft);
font-size:14px}
footer p{max-width:60em}
@media (max-width:760px){main{padding:36px 18px 28px}
h1{font-size:33px}.lede{font-size:18px}
.figures{grid-template-columns:1fr 1fr;margin-top:30px}
.figures div{padding:14px 12px 14px 0}
.figures div:nth-child(odd){border-left:0;padding-left:0}
.figures div:nth-child(n+3){border-top:1px solid var(--line)}
.figures dd{font-size:26px}
h2.part{margin-top:56px;font-size:25px}
.pair,.beside{display:block}
.pair>section+section{margin-top:36px}
.claim{margin-left:-18px;margin-right:-18px;border-radius:0;padding:22px 18px 14px}
figure{margin-top:18px}
.technical .facts{grid-template-columns:1fr;gap:0}.technical dt{margin-top:6px}}
@page{size:A4;margin:14mm}
@media print{:root{--paper:#fff;--ink:#000;--soft:#444}main{max-width:none;padding:0}
body{font-size:10.5pt}section,figure,tr{break-inside:avoid}h2.part{margin-top:30px}}
"""
