"""How the page looks: on a screen, and on paper."""

STYLE = """
:root{--ink:#1c2733;--soft:#5d6b7a;--line:#dfe5eb;--paper:#fff;--back:#f5f7f9;
--ready:#2b7a9b;--delayed:#e0a030;--leased:#5f9e5f;--age:#5277a8;--priority:#8067a5;--size:#4f8f86}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--back);color:var(--ink);
font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,"Helvetica Neue","Noto Sans",Arial,sans-serif}
main{max-width:1440px;margin:0 auto;padding:32px 28px 48px}
h1{font-size:28px;font-weight:650;letter-spacing:-.01em;margin:0;line-height:1.2}
h2{font-size:16px;font-weight:650;margin:0}
small{color:var(--soft);font-size:12.5px}
header{margin-bottom:20px}
.time{margin:4px 0 0;color:var(--soft)}
.none{padding:48px;text-align:center;color:var(--soft);background:var(--paper);border:1px solid var(--line);
border-radius:8px}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(140px,1fr));gap:12px;margin:0 0 16px}
.card,section.states,section.wide,figure{background:var(--paper);border:1px solid var(--line);border-radius:8px}
.card{padding:12px 16px}
.card dt{color:var(--soft);font-size:13px}
.card dd{margin:0}
.card b{display:block;font-size:23px;font-weight:620;line-height:1.3;font-variant-numeric:tabular-nums}
section.states,section.wide{padding:16px 18px;margin-bottom:16px}
section.wide>p{margin:0 0 8px;color:var(--soft);font-size:13px}
section.wide{overflow-x:auto}
.states svg{width:100%;height:22px;margin:10px 0 8px;border-radius:4px}
.legend{display:flex;flex-wrap:wrap;gap:4px 24px;list-style:none;margin:0;padding:0;font-variant-numeric:tabular-nums}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:7px}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(340px,1fr));gap:16px;margin-bottom:16px}
figure{margin:0;padding:16px 18px}
figcaption p{margin:2px 0 8px;color:var(--soft);font-size:13px;font-variant-numeric:tabular-nums}
svg{display:block}
svg.chart{width:100%;height:auto;font-family:inherit}
svg.spark{max-width:none}
.states svg.spark{max-width:100%}
text.label{font-size:10.5px;fill:var(--soft)}
text.value{font-size:11px;fill:var(--ink)}
.axis{stroke:#c3ccd6;stroke-width:1}
rect.empty{fill:#edf1f4}
rect.ready{fill:var(--ready)}i.ready{background:var(--ready)}
rect.delayed{fill:var(--delayed)}i.delayed{background:var(--delayed)}
rect.leased{fill:var(--leased)}i.leased{background:var(--leased)}
rect.age{fill:var(--age)}rect.priority{fill:var(--priority)}rect.size{fill:var(--size)}
table{border-collapse:collapse;width:100%;font-size:13px}
th{font-weight:600;font-size:12px;color:var(--soft);text-align:left;white-space:nowrap;
border-bottom:1px solid #c3ccd6}
th,td{padding:6px 7px;vertical-align:middle}
th:first-child,td:first-child{padding-left:0}
th:last-child,td:last-child{padding-right:0}
td{border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
td.name{min-width:84px;max-width:260px}
.name bdi{display:-webkit-box;-webkit-box-orient:vertical;-webkit-line-clamp:3;overflow:hidden;
overflow-wrap:anywhere}
tr.rest td{color:var(--soft);font-style:italic}
.ids{display:flex;flex-wrap:wrap;gap:2px 18px;list-style:none;margin:0;padding:0}
code{font:12.5px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace}
footer{color:var(--soft);font-size:12.5px;max-width:80em}
@media print{
@page{size:A4 landscape;margin:12mm}
body{background:#fff;font-size:11px;-webkit-print-color-adjust:exact;print-color-adjust:exact}
main{max-width:none;padding:0}
.card,figure,tr{break-inside:avoid}
section.wide{overflow:visible;border:0;padding:0}
thead{display:table-header-group}
table{font-size:10px}th,td{padding:3px 5px}
svg.spark{max-width:70px}
.charts{grid-template-columns:repeat(3,1fr)}
}
"""
